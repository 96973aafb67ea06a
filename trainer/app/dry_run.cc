#include "trainer/app/dry_run.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/parallel/mesh.h"
#include "layout/topology.h"
#include "models/model_config.h"
#include "storage/open_storage.h"
#include "storage/storage.h"
#include "tensor/memory.h"
#include "trainer/app/host_share.h"
#include "trainer/app/start.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/metrics/run_events.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/run_state.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_run.h"
#include "trainer/state/saved_settings.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

class Lines {
 public:
  void Add(absl::string_view label, absl::string_view text) {
    absl::StrAppendFormat(&text_, "%-12s%s\n", label,
                          absl::StrReplaceAll(text, {{"\n", "\n            "}}));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Where the run would begin.
struct Start {
  TrainConfig config;  // of the run
  Progress progress;
  std::optional<SavedRun> saved;
  std::string from;
  std::vector<std::string> notes;
};

absl::StatusOr<Start> FindStart(const TrainConfig& config) {
  const std::unique_ptr<ckpt::ProcessGroup> alone = MakeProcessGroup(nullptr);
  Start start = {.config = config, .from = "step 0, with initial weights"};
  const NoteSink note = [&](const std::string& text) { start.notes.push_back(text); };
  TESSERA_ASSIGN_OR_RETURN(start.saved, FindSavedRun(config, {.ranks = *alone}, note));
  TESSERA_ASSIGN_OR_RETURN(start.progress, StartingPoint(start.saved, &start.config));
  if (!start.saved.has_value()) {
    const std::string& llmc = config.checkpoint().llmc_filepath();
    if (!llmc.empty()) {
      TESSERA_RETURN_IF_ERROR(FindLlmcFile(config, {.ranks = *alone}).status());
      start.from = absl::StrCat("step 0, with the weights of ", llmc);
    }
    return start;
  }
  TESSERA_RETURN_IF_ERROR(CheckModel(*start.saved, start.config, note));
  const int64_t step = start.progress.step;
  TESSERA_RETURN_IF_ERROR(CheckLaterSteps(config, step, start.saved->is_own, {.ranks = *alone}));
  const std::string settings =
      DescribeChangedSettings(start.saved->manifest(), start.config, start.progress.seed, step);
  if (!settings.empty()) note(settings);
  start.from = absl::StrCat(start.saved->Describe(), ", at step ", step);
  return start;
}

// Returns the memory of the rank whose sum is the largest.
absl::StatusOr<Trainer::Memory> BuildAllRanks(const TrainConfig& config, bool trains) {
  Trainer::Memory most;
  std::mutex mutex;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    const std::unique_ptr<Backend> backend = MakeCpuBackend(/*threads=*/1);
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Mesh> mesh,
                             Mesh::Create(ConfigTopology(config), &rank));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                             Trainer::Create(config, {.trains = trains}, *mesh, *backend));
    const std::lock_guard lock(mutex);
    if (SumOf(trainer->memory()) > SumOf(most)) most = trainer->memory();
    return absl::OkStatus();
  }));
  return most;
}

absl::StatusOr<std::string> DescribeMemory(const TrainConfig& config, bool trains) {
  const bool builds = ConfigTopology(config).world_size() <= kMaxDryRunRanks &&
                      config.training().device() != ComputeDevice::CUDA;
  Trainer::Memory memory = EstimateState(config, trains);
  if (builds) {
    TESSERA_ASSIGN_OR_RETURN(memory, BuildAllRanks(config, trains));
  }
  return absl::StrCat(HumanBytes(SumOf(memory)), " in a process: ", Describe(memory),
                      builds ? "" : "; activations are not counted", "; ",
                      HumanBytes(AvailableHostMemory()), " are available here");
}

// Everything that a run opens besides its training data.
absl::Status CheckFiles(const TrainConfig& config) {
  const DataConfig& data = config.data();
  if (!data.valid_data_path().empty()) {
    TESSERA_RETURN_IF_ERROR(OpenTokens("valid_data_path", data.valid_data_path(), config).status());
  }
  return data.tokenizer_model().empty() ? absl::OkStatus() : OpenTokenizer(config).status();
}

absl::StatusOr<std::string> DescribeData(const TrainConfig& config, int64_t samples) {
  const std::string& pattern = config.data().train_data_path();
  if (pattern.empty()) return "no train_data_path";
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TokenDataset> dataset,
                           OpenTokens("train_data_path", pattern, config));
  return absl::StrFormat("%s, %s tokens, of which all steps read %.2f epochs",
                         dataset->DescribeFiles(), Grouped(dataset->num_tokens()),
                         static_cast<double>(samples) / dataset->num_samples());
}

// Returns the bytes of the weights in the compute dtype and, with the optimizer, of the master
// weights of bf16 and two moments.
int64_t CheckpointBytes(const TrainConfig& config) {
  const int weight = config.training().bf16() ? 2 : 4;
  const int optimizer = config.training().bf16() ? 12 : 8;
  return ParameterCount(config.model()) *
         (weight + (config.checkpoint().no_save_optim() ? 0 : optimizer));
}

// Returns how many multiples of `interval` are after `first` and at most `last`; 0 if it is 0.
int64_t Multiples(int64_t interval, int64_t first, int64_t last) {
  return interval == 0 ? 0 : last / interval - first / interval;
}

// Returns how many of the run's permanent checkpoints there are at once, at most: with
// max_checkpoint_keep alone, as many and the one that is being written.
int64_t MostAtOnce(const CheckpointConfig& checkpoint, int64_t saves) {
  const bool keeps_others = checkpoint.save_retain_interval() > 0 || checkpoint.save_top_k() > 0 ||
                            checkpoint.save_retain_minutes() > 0;
  const int64_t newest = checkpoint.max_checkpoint_keep();
  return newest == 0 || keeps_others ? saves : std::min(saves, newest + 1);
}

std::string DescribeCheckpoints(const TrainConfig& config, int64_t first_step) {
  if (!Saves(config)) return "none are saved";
  const CheckpointConfig& checkpoint = config.checkpoint();
  const int64_t bytes = CheckpointBytes(config), last = config.training().train_iters();
  const int64_t interval = checkpoint.save_interval();
  const bool adds_last = checkpoint.save_last_step() && (interval == 0 || last % interval != 0);
  const int64_t saves = Multiples(interval, first_step, last) + (adds_last ? 1 : 0);
  int64_t at_once = MostAtOnce(checkpoint, saves);
  std::string text = absl::StrCat(HumanBytes(bytes), " each, to ", checkpoint.save());
  if (interval > 0)
    absl::StrAppend(&text, ", ", EveryText(interval, "step"), ": ", saves, " of them");
  // A permanent checkpoint takes the place of a rolling one.
  const int64_t rolling = checkpoint.non_persistent_save_interval();
  if (rolling > 0 && (interval == 0 || rolling % interval != 0)) {
    absl::StrAppend(&text, ", and ", EveryText(rolling, "step"),
                    " a rolling one, of which two are kept");
    at_once += std::min<int64_t>(Multiples(rolling, first_step, last), 2);
  }
  // The number of those that are saved by the clock is unknown.
  const bool is_known = checkpoint.save_interval_minutes() == 0 && !checkpoint.save_continuously();
  if (is_known && at_once <= std::numeric_limits<int64_t>::max() / bytes) {
    absl::StrAppend(&text, "; at most ", HumanBytes(at_once * bytes), " at once");
  }
  const auto storage = OpenStorage(checkpoint.save(), StoresOf(checkpoint));
  const absl::StatusOr<uint64_t> free = storage.ok() ? (*storage)->FreeBytes() : storage.status();
  if (free.ok()) absl::StrAppend(&text, "; ", HumanBytes(*free), " are free there");
  return text;
}

std::string DescribeSteps(const TrainConfig& config, const Start& start) {
  const TrainingConfig& training = config.training();
  const int64_t left = training.train_iters() - start.progress.step;
  if (left <= 0) return absl::StrCat("none are left of ", training.train_iters());
  return absl::StrCat(
      left, start.progress.step > 0 ? absl::StrCat(" of ", training.train_iters()) : "",
      ", each of ", Counted(training.global_batch_size(), "sample"), " of ",
      Counted(training.seq_length(), "token"), ": ",
      Grouped(left * training.global_batch_size() * training.seq_length()), " tokens");
}

// Returns each rank's memory on rank 0.
absl::StatusOr<std::vector<Trainer::Memory>> GatherMemory(const Session& session) {
  Trainer::Memory mine = session.trainer->memory();
  if (TrainingDevice* const gpu = session.device->gpu(); gpu != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(mine, GpuMemory(session.config, *session.trainer, *gpu));
  }
  const RankGroup group = session.group();
  std::string message;
  for (const auto& [name, bytes] : kMemoryKinds) absl::StrAppend(&message, mine.*bytes, " ");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           group.ranks.Gather(message, group.timeout));
  std::vector<Trainer::Memory> ranks;
  for (const std::string& text : texts) {
    std::istringstream numbers(text);
    Trainer::Memory& memory = ranks.emplace_back();
    for (const auto& [name, bytes] : kMemoryKinds) numbers >> memory.*bytes;
    if (!numbers) return absl::InternalError("a rank's message about its memory does not parse");
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
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    NumbersOfRank& kinds = event.ranks[static_cast<int>(rank)];
    for (const auto& [name, bytes] : kMemoryKinds) {
      kinds[name] = static_cast<double>(ranks[rank].*bytes);
    }
  }
  if (!session.resumed) return event;
  event.strings["checkpoint"] = session.resumed_from;
  if (!session.progress.partial_resumes.empty()) {
    event.strings["partial_resumes"] = session.progress.partial_resumes;
  }
  if (session.resumed_in_memory) event.strings["tier"] = "memory";
  if (!session.saved_topology.empty()) event.strings["saved_topology"] = session.saved_topology;
  const std::optional<double> down_seconds = session.events->idle_seconds();
  const std::optional<ResumeMetrics>& lost = session.metrics->lost();
  if (down_seconds.has_value() && (lost.has_value() || session.resumed_own)) {
    event.numbers["down_seconds"] = *down_seconds;
  }
  if (lost.has_value()) {
    event.numbers["lost_steps"] = static_cast<double>(lost->lost_steps);
    event.numbers["lost_seconds"] = lost->lost_seconds;
  }
  return event;
}

}  // namespace

absl::StatusOr<std::string> DescribeDryRun(const TrainConfig& given) {
  TESSERA_ASSIGN_OR_RETURN(const Start start, FindStart(given));
  const TrainConfig& config = start.config;
  TESSERA_RETURN_IF_ERROR(CheckFiles(config));
  const TrainingConfig& training = config.training();
  const Topology topology = ConfigTopology(config);
  const bool trains = start.progress.step < training.train_iters();
  Lines lines;
  lines.Add("model", absl::StrCat(Grouped(ParameterCount(config.model())), " parameters, ",
                                  training.bf16() ? "bf16" : "fp32"));
  lines.Add("processes", absl::StrCat(topology.world_size(), ", ", ToString(topology)));
  lines.Add("begins", absl::StrCat("from ", start.from));
  for (const std::string& note : start.notes) lines.Add("", note);
  lines.Add("steps", DescribeSteps(config, start));
  if (trains) {
    const int64_t steps_left = training.train_iters() - start.progress.step;
    TESSERA_ASSIGN_OR_RETURN(const std::string data,
                             DescribeData(config, start.progress.consumed_samples +
                                                      steps_left * training.global_batch_size()));
    lines.Add("data", data);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string memory, DescribeMemory(config, trains));
  lines.Add("memory", memory);
  if (trains) lines.Add("checkpoints", DescribeCheckpoints(config, start.progress.step));
  return absl::StrCat(lines.text(), "nothing was trained, loaded or written\n");
}

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
  progress_line.Message(absl::StrCat("data: ", session.train_data->dataset->DescribeFiles()));
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
