#include "trainer/app/run_summary.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "layout/topology.h"
#include "models/model_config.h"
#include "trainer/app/memory.h"
#include "trainer/config/config.h"
#include "trainer/metrics/run_events.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

// Each rank's memory, on rank 0.
absl::StatusOr<std::vector<Trainer::Memory>> GatherMemory(const Session& session) {
  const Trainer::Memory mine = session.trainer->memory();
  const RankGroup group = session.group();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           group.ranks.Gather(absl::StrCat(mine.weights, " ", mine.gradients, " ",
                                                           mine.optimizer, " ", mine.activations),
                                              group.deadline));
  std::vector<Trainer::Memory> ranks;
  for (const std::string& text : texts) {
    const std::vector<std::string> numbers = absl::StrSplit(text, ' ');
    Trainer::Memory& memory = ranks.emplace_back();
    if (numbers.size() != 4 || !absl::SimpleAtoi(numbers[0], &memory.weights) ||
        !absl::SimpleAtoi(numbers[1], &memory.gradients) ||
        !absl::SimpleAtoi(numbers[2], &memory.optimizer) ||
        !absl::SimpleAtoi(numbers[3], &memory.activations)) {
      return absl::InternalError("a rank's message about its memory does not parse");
    }
  }
  return ranks;
}

std::string DescribeRanks(const std::vector<Trainer::Memory>& ranks) {
  const auto by_sum = [](const Trainer::Memory& a, const Trainer::Memory& b) {
    return SumOf(a) < SumOf(b);
  };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), by_sum);
  const bool one_size = SumOf(*least) == SumOf(*most);
  return absl::StrCat(
      "memory: ", HumanBytes(SumOf(*most)), ranks.size() == 1 ? "" : " in ",
      ranks.size() == 1 ? ""
      : one_size        ? "each process"
                        : "the largest process",
      ": ", Describe(*most),
      one_size ? "" : absl::StrCat("; ", HumanBytes(SumOf(*least)), " in the smallest"));
}

std::string DescribeStart(const Session& session) {
  const int64_t step = session.progress.step;
  const int64_t steps = session.config.training().train_iters();
  if (!session.resumed) return absl::StrCat("begins at step ", step, " of ", steps);
  const std::string topology = ToString(ConfigTopology(session.config));
  return absl::StrCat("goes on after step ", step, " of ", steps, " from ", session.resumed_from,
                      session.saved_topology.empty() || session.saved_topology == topology
                          ? ""
                          : absl::StrCat(", which ", session.saved_topology, " saved"));
}

RunEvent StartEvent(const Session& session, const std::vector<Trainer::Memory>& ranks,
                    double predicted_seconds) {
  RunEvent event = {.name = session.resumed ? "resume" : "start",
                    .step = session.progress.step,
                    .text = DescribeStart(session),
                    .topology = ToString(ConfigTopology(session.config))};
  event.numbers["parameters"] = static_cast<double>(ParameterCount(session.config.model()));
  if (predicted_seconds > 0) event.numbers["predicted_step_seconds"] = predicted_seconds;
  for (const Trainer::Memory& memory : ranks) {
    event.ranks.push_back({{"weights", memory.weights},
                           {"gradients", memory.gradients},
                           {"optimizer", memory.optimizer},
                           {"activations", memory.activations}});
  }
  if (!session.resumed) return event;
  event.strings["checkpoint"] = session.resumed_from;
  if (session.resumed_in_memory) event.strings["tier"] = "memory";
  if (!session.saved_topology.empty()) event.strings["saved_topology"] = session.saved_topology;
  if (!session.events->idle_seconds().has_value()) return event;
  const ResumeMetrics& lost = session.metrics->lost();
  event.numbers["lost_steps"] = static_cast<double>(lost.lost_steps);
  event.numbers["lost_seconds"] = lost.lost_seconds;
  event.numbers["down_seconds"] = *session.events->idle_seconds();
  return event;
}

}  // namespace

std::string Grouped(int64_t number) {
  std::string text = absl::StrCat(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

absl::Status AnnounceStart(const Session& session, const RateMeter::Options& rates,
                           ProgressLine& progress_line) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Trainer::Memory> ranks, GatherMemory(session));
  if (!session.first_rank()) return absl::OkStatus();
  const TrainConfig& config = session.config;
  const Topology topology = ConfigTopology(config);
  progress_line.Message(absl::StrCat(
      Grouped(ParameterCount(config.model())), " parameters, ",
      config.training().bf16() ? "bf16" : "fp32", "; processes: ", topology.world_size(),
      topology.world_size() == 1 ? "" : absl::StrCat(", ", ToString(topology))));
  progress_line.Message(DescribeRanks(ranks));
  const double seconds = rates.peak_flops > 0 ? static_cast<double>(rates.tokens_per_step) *
                                                    rates.flops_per_token / rates.peak_flops
                                              : 0;
  if (seconds > 0) {
    progress_line.Message(absl::StrFormat(
        "a step takes at least %s: its matrix products, at the measured %.4g GFLOP/s",
        HumanSeconds(seconds), rates.peak_flops / 1e9));
  }
  progress_line.Message(DescribeStart(session));
  if (session.events != nullptr) session.events->Add(StartEvent(session, ranks, seconds));
  return absl::OkStatus();
}

}  // namespace tessera
