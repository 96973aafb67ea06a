// The cost of parallel training: two MPI ranks of one thread each against one rank of two threads,
// a sixth of GPT-2 124M, which computes and sends a sixth, eight micro-batches per step. For dp2,
// dp2_zero2, tp2, tp2_sp and pp2
//   figure parallel.<topology>.efficiency <seconds alone / seconds in parallel> ratio
// the median over rounds, each of which runs one rank and then every topology. The pipeline bubble
// is discounted: the ideal time is one rank's time divided by (1 - bubble share).
//
// Started without --rank_of, it starts mpirun and itself.

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/mpi/mpi_world.h"
#include "layout/topology.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"

ABSL_FLAG(std::string, rank_of, "", "Be a rank of this topology and print the seconds of a step.");
ABSL_FLAG(std::vector<std::string>, topologies,
          std::vector<std::string>({"dp2", "dp2_zero2", "tp2", "tp2_sp", "pp2"}),
          "What to measure.");
ABSL_FLAG(int, rounds, 2, "Rounds behind each median.");
ABSL_FLAG(int, steps, 2, "Steps of one run behind its median, after one to warm up.");
ABSL_FLAG(int, layers, 2, "Of GPT-2's twelve, with as much of its vocabulary.");
ABSL_FLAG(int64_t, sequence, 256, "Tokens of a sequence.");
ABSL_FLAG(bool, bf16, false, "bf16 in place of fp32.");

namespace tessera {
namespace {

constexpr int64_t kMicroBatches = 8;

absl::Status TimeSteps(Communicator& world) {
  const std::string topology = absl::GetFlag(FLAGS_rank_of);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> run,
                           Gpt2Run::Create({.layers = absl::GetFlag(FLAGS_layers),
                                            .topology = topology,
                                            .threads = topology == "single" ? 2 : 1,
                                            .bf16 = absl::GetFlag(FLAGS_bf16),
                                            .micro_batches = kMicroBatches,
                                            .sequence = absl::GetFlag(FLAGS_sequence)},
                                           &world));
  std::vector<double> seconds;
  for (int step = -1; step < absl::GetFlag(FLAGS_steps); ++step) {
    TESSERA_RETURN_IF_ERROR(world.Barrier());
    TESSERA_ASSIGN_OR_RETURN(double time, run->Step());
    TESSERA_RETURN_IF_ERROR(world.AllReduce(std::span(&time, 1), ReduceOp::kMax));
    if (step >= 0) seconds.push_back(time);
  }
  if (world.rank() == 0) std::printf("seconds %.6f\n", Median(seconds));
  return absl::OkStatus();
}

// Duration of a step of `topology`, measured in a separate process.
absl::StatusOr<double> Seconds(const std::string& topology) {
  std::fprintf(stderr, "%s\n", topology.c_str());
  TESSERA_ASSIGN_OR_RETURN(const Topology sizes, ParseTopology(topology));
  double seconds = 0;
  TESSERA_RETURN_IF_ERROR(RunRanks(
      sizes.world_size(),
      absl::StrCat("--rank_of=", topology, " --steps=", absl::GetFlag(FLAGS_steps), " --sequence=",
                   absl::GetFlag(FLAGS_sequence), " --layers=", absl::GetFlag(FLAGS_layers),
                   " --bf16=", absl::GetFlag(FLAGS_bf16)),
      [&](const std::string& line) { std::sscanf(line.c_str(), "seconds %lf", &seconds); }));
  return seconds;
}

// Returns the pipeline bubble: the share of a rank's time that it necessarily waits.
double Bubble(const std::string& topology) {
  const absl::StatusOr<Topology> sizes = ParseTopology(topology);
  const double waits = sizes->pipeline - 1;
  const int64_t passes = sizes->virtual_pipeline * (kMicroBatches / sizes->data);
  return waits / (static_cast<double>(passes) + waits);
}

absl::Status Measure() {
  const std::vector<std::string> topologies = absl::GetFlag(FLAGS_topologies);
  std::map<std::string, Pairs> seconds;  // ideal and found
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const double alone, Seconds("single"));
    for (const std::string& topology : topologies) {
      TESSERA_ASSIGN_OR_RETURN(const double parallel, Seconds(topology));
      const double ideal = alone / (1 - Bubble(topology));
      std::printf("%s: %.3f s, alone %.3f s, ideal %.3f s\n", topology.c_str(), parallel, alone,
                  ideal);
      seconds[topology].Add(ideal, parallel);
    }
    return absl::OkStatus();
  }));
  for (const std::string& topology : topologies) {
    PrintFigure(absl::StrCat("parallel.", topology, ".efficiency"), seconds[topology].Ratio());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_rank_of).empty()) return tessera::RunMpiRank({}, tessera::TimeSteps);
  return tessera::RunProgram("parallel_step", tessera::Measure);
}
