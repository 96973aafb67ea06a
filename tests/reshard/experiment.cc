// The experiment by which resharding is usually demonstrated, but with an equality instead of a
// visual comparison of curves: GPT-2 and Llama-3 are trained at dp4_zero2_tp2_pp2, resumed from one
// checkpoint under other topologies, and every later loss is compared with the uninterrupted run's.
// In EXACT numerics they must be equal bit for bit, and so must the gradient norms, the evaluation
// and the final state; otherwise the program fails. FAST: reports the largest relative difference
// of a loss.
//
//   bazel run //tests/reshard:experiment -- --svg=/tmp/reshard.svg

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/metrics/plot.h"

ABSL_FLAG(std::string, svg, "",
          "where the plot goes; empty: reshard_experiment.svg where the program is started");
ABSL_FLAG(int, save_step, 100, "the step of the checkpoint");
ABSL_FLAG(int, last_step, 150, "the step at which every run ends");

namespace tessera {
namespace {

using testing::TrainedRun;

constexpr char kFrom[] = "dp4_zero2_tp2_pp2";
constexpr char kUninterrupted[] = "uninterrupted";
constexpr int kShards = 4;
constexpr int64_t kVocabulary = 211;

struct Model {
  std::string name;
  std::string config;  // ModelConfig in text format
};

// Topologies that can share one global batch of micro-batches of one sequence.
struct TopologyGroup {
  int64_t global_batch_size;
  std::vector<std::string> topologies;
};

const Model kModels[] = {{"GPT-2", R"pb(
                            size: "gpt2-tiny"
                            num_layers: 6
                            num_attention_heads: 8
                            vocab_size: 211
                            hidden_dropout: 0.1
                          )pb"},
                         {"Llama-3", R"pb(
                            size: "llama3-tiny"
                            num_layers: 6
                            num_attention_heads: 8
                            num_query_groups: 4
                            vocab_size: 211
                          )pb"}};

const std::vector<TopologyGroup>& Groups() {
  static const auto& groups = *new std::vector<TopologyGroup>{
      {16,
       {kFrom, "single", "dp2", "dp8", "tp4", "pp4", "dp2_tp4", "dp4_pp4", "tp2_pp2", "dp16",
        "dp2_zero1_tp2_sp", "pp2_vpp2", "dp16_zero2", "pp6", "dp2_zero2_tp2_pp2_vpp2_sp"}},
      // Divisible by three data ranks: in EXACT numerics each rank's run of micro-batches must be a
      // power of two.
      {12, {kFrom, "dp3", "dp3_tp2_pp2", "dp6_zero1", "dp12_zero2", "dp3_zero2"}}};
  return groups;
}

// One topology's line of the table.
struct Outcome {
  std::string topology;
  int ranks = 1;
  std::optional<TrainedRun> exact;  // none: EXACT numerics refuse it
  std::string refusal;
  std::string difference;  // in EXACT numerics, from the uninterrupted run
  TrainedRun fast;
  double largest_fast_difference = 0;
};

struct GroupOutcome {
  int64_t global_batch_size = 0;
  TrainedRun exact;  // uninterrupted
  TrainedRun fast;
  std::vector<Outcome> outcomes;
};

class Experiment {
 public:
  Experiment(const Model& model, std::string folder) : model_(model), folder_(std::move(folder)) {}

  absl::StatusOr<GroupOutcome> Run(const TopologyGroup& group) const {
    GroupOutcome result{.global_batch_size = group.global_batch_size};
    TESSERA_ASSIGN_OR_RETURN(result.exact, Train(group, kFrom, /*exact=*/true, /*resumed=*/false));
    TESSERA_ASSIGN_OR_RETURN(result.fast, Train(group, kFrom, /*exact=*/false, /*resumed=*/false));
    for (const std::string& topology : group.topologies) {
      TESSERA_ASSIGN_OR_RETURN(Outcome outcome, Resume(group, topology, result));
      std::fprintf(stderr, "%s, global batch %d: %s\n", model_.name.c_str(),
                   static_cast<int>(group.global_batch_size), topology.c_str());
      result.outcomes.push_back(std::move(outcome));
    }
    return result;
  }

 private:
  absl::StatusOr<TrainConfig> Config(const TopologyGroup& group, const std::string& topology,
                                     bool exact) const {
    return testing::MakeConfig({.model = model_.config,
                                .tokens = folder_ + "/tokens.bin",
                                .topology = topology,
                                .exact_shards = exact ? kShards : 0,
                                .micro_batch_size = 1,
                                .global_batch_size = group.global_batch_size,
                                .seq_length = 32,
                                .steps = absl::GetFlag(FLAGS_last_step),
                                .decay_steps = absl::GetFlag(FLAGS_last_step),
                                .bucket_elements = 20000});
  }

  std::string Checkpoints(const TopologyGroup& group, bool exact) const {
    return absl::StrCat(folder_, "/", model_.name, group.global_batch_size,
                        exact ? "exact" : "fast");
  }

  absl::StatusOr<TrainedRun> Train(const TopologyGroup& group, const std::string& topology,
                                   bool exact, bool resumed) const {
    TESSERA_ASSIGN_OR_RETURN(TrainConfig config, Config(group, topology, exact));
    CheckpointConfig& checkpoint = *config.mutable_checkpoint();
    if (resumed) {
      checkpoint.set_load(Checkpoints(group, exact));
      checkpoint.set_ckpt_step(absl::GetFlag(FLAGS_save_step));
    } else {
      checkpoint.set_save(Checkpoints(group, exact));
      checkpoint.set_save_interval(absl::GetFlag(FLAGS_save_step));
    }
    return testing::TrainOnThreads(config);
  }

  absl::StatusOr<Outcome> Resume(const TopologyGroup& group, const std::string& topology,
                                 const GroupOutcome& all) const {
    Outcome outcome{.topology = topology};
    TESSERA_ASSIGN_OR_RETURN(const TrainConfig fast, Config(group, topology, /*exact=*/false));
    outcome.ranks = ConfigTopology(fast).world_size();
    TESSERA_ASSIGN_OR_RETURN(outcome.fast,
                             Train(group, topology, /*exact=*/false, /*resumed=*/true));
    outcome.largest_fast_difference = testing::LargestLossDifference(all.fast, outcome.fast);
    if (const absl::Status legal = Config(group, topology, /*exact=*/true).status(); !legal.ok()) {
      outcome.refusal = std::string(legal.message());
      return outcome;
    }
    TESSERA_ASSIGN_OR_RETURN(outcome.exact,
                             Train(group, topology, /*exact=*/true, /*resumed=*/true));
    outcome.difference = testing::FirstDifference(all.exact, *outcome.exact);
    return outcome;
  }

  const Model& model_;
  const std::string folder_;
};

std::string LossAt(const TrainedRun& run, int64_t step) {
  return absl::StrFormat("%10.6f", run.losses[step - 1 - run.first_step]);
}

void PrintTable(const Model& model, const GroupOutcome& group) {
  const int64_t first = absl::GetFlag(FLAGS_save_step) + 1, last = absl::GetFlag(FLAGS_last_step);
  const int64_t middle = (first + last) / 2;
  std::cout << absl::StrFormat("\n%s, global batch %d, %s to step %d, then\n", model.name,
                               group.global_batch_size, kFrom, first - 1)
            << absl::StrFormat("%-27s %5s %32s %-10s %32s %10s\n", "", "", "EXACT: loss at step",
                               "", "FAST: loss at step", "largest")
            << absl::StrFormat("%-27s %5s %10d %10d %10d %-10s %10d %10d %10d %10s\n", "topology",
                               "ranks", first, middle, last, "bits", first, middle, last,
                               "rel. diff.");
  const auto losses = [&](const TrainedRun& run) {
    return absl::StrCat(LossAt(run, first), " ", LossAt(run, middle), " ", LossAt(run, last));
  };
  std::cout << absl::StrFormat("%-27s %5d %s %-10s %s\n", kUninterrupted, 16, losses(group.exact),
                               "", losses(group.fast));
  for (const Outcome& outcome : group.outcomes) {
    std::cout << absl::StrFormat("%-27s %5d %32s %-10s %s %10.1e\n", outcome.topology,
                                 outcome.ranks,
                                 outcome.exact.has_value() ? losses(*outcome.exact) : "refused",
                                 !outcome.exact.has_value()   ? "-"
                                 : outcome.difference.empty() ? "equal"
                                                              : "DIFFER",
                                 losses(outcome.fast), outcome.largest_fast_difference);
    if (!outcome.difference.empty()) std::cout << "    " << outcome.difference << "\n";
    if (!outcome.refusal.empty()) std::cout << "    EXACT: " << outcome.refusal << "\n";
  }
}

Curve LossCurve(const std::string& name, const TrainedRun& run) {
  Curve curve{.name = name};
  for (size_t i = 0; i < run.losses.size(); ++i) {
    curve.points.emplace_back(run.first_step + static_cast<int64_t>(i) + 1, run.losses[i]);
  }
  return curve;
}

Curve DifferenceCurve(const std::string& name, const TrainedRun& all, const TrainedRun& run) {
  Curve curve{.name = name};
  for (size_t i = 0; i < run.losses.size(); ++i) {
    const double expected = all.losses[run.first_step + static_cast<int64_t>(i)];
    curve.points.emplace_back(run.first_step + static_cast<int64_t>(i) + 1,
                              std::abs(run.losses[i] - expected) / std::abs(expected));
  }
  return curve;
}

// The losses in EXACT numerics, all curves on top of one another, and the differences of FAST ones.
std::vector<Panel> Panels(const Model& model, const GroupOutcome& group) {
  const std::string what = absl::StrCat(model.name, ", global batch ", group.global_batch_size);
  Panel exact{what + ", EXACT: every loss bitwise equal", "step", "loss", false, {}};
  Panel fast{what + ", FAST: difference from the uninterrupted run",
             "step",
             "relative difference of the loss",
             true,
             {}};
  exact.curves.push_back(LossCurve(kUninterrupted, group.exact));
  for (const Outcome& outcome : group.outcomes) {
    if (!outcome.difference.empty()) exact.title = what + ", EXACT: losses DIFFER";
    if (outcome.exact.has_value())
      exact.curves.push_back(LossCurve(outcome.topology, *outcome.exact));
    fast.curves.push_back(DifferenceCurve(outcome.topology, group.fast, outcome.fast));
  }
  return {exact, fast};
}

std::string SvgPath() {
  if (!absl::GetFlag(FLAGS_svg).empty()) return absl::GetFlag(FLAGS_svg);
  const char* started_in = std::getenv("BUILD_WORKING_DIRECTORY");  // set by `bazel run`
  return absl::StrCat(started_in == nullptr ? "." : started_in, "/reshard_experiment.svg");
}

// Whether all EXACT runs are equal.
absl::StatusOr<bool> RunAll(const std::string& folder) {
  TESSERA_RETURN_IF_ERROR(testing::WriteTokens(folder + "/tokens.bin", kVocabulary, 40000));
  bool equal = true;
  std::vector<Panel> panels;
  for (const Model& model : kModels) {
    const Experiment experiment(model, folder);
    for (const TopologyGroup& group : Groups()) {
      TESSERA_ASSIGN_OR_RETURN(const GroupOutcome outcome, experiment.Run(group));
      PrintTable(model, outcome);
      for (Panel& panel : Panels(model, outcome)) panels.push_back(std::move(panel));
      for (const Outcome& one : outcome.outcomes) equal = equal && one.difference.empty();
    }
  }
  const std::string path = SvgPath();
  std::ofstream svg(path);
  svg << PlotSvg(absl::StrCat("Trained at ", kFrom, " to step ", absl::GetFlag(FLAGS_save_step),
                              ", resumed under other topologies"),
                 panels, /*columns=*/2);
  if (!svg.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  std::cout << "\nplot: " << path << "\n";
  return equal;
}

int Main() {
  if (absl::GetFlag(FLAGS_save_step) < 1 ||
      absl::GetFlag(FLAGS_last_step) < absl::GetFlag(FLAGS_save_step) + 1 ||
      absl::GetFlag(FLAGS_last_step) >= 2 * absl::GetFlag(FLAGS_save_step)) {
    std::cerr << "expected 0 < save_step < last_step < 2 * save_step\n";
    return 2;
  }
  const std::string folder =
      (std::filesystem::temp_directory_path() / absl::StrCat("tessera_reshard_", getpid()))
          .string();
  std::filesystem::create_directories(folder);
  const absl::StatusOr<bool> equal = RunAll(folder);
  std::filesystem::remove_all(folder);
  if (!equal.ok()) {
    std::cerr << equal.status() << "\n";
    return 1;
  }
  std::cout << (*equal ? "EXACT: every later loss is bitwise that of the uninterrupted run, on "
                         "every topology\n"
                       : "EXACT: losses differ\n");
  return *equal ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::Main();
}
