// The cost of parallel training: two MPI ranks of one thread each against one rank of two threads,
// GPT-2 124M, eight micro-batches per step. For dp2, dp2_zero2, tp2, tp2_sp and pp2
//   figure parallel.<topology>.efficiency <seconds alone / seconds in parallel> ratio
// the median over rounds, each of which runs one rank and then every topology. The pipeline bubble
// is discounted: the ideal time is one rank's time divided by (1 - bubble share).
//
// Started without --rank_of, it starts mpirun and itself.

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/comm/mpi/mpi_world.h"
#include "compute/parallel/pipeline_schedule.h"
#include "compute/parallel/topology.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(std::string, rank_of, "", "Be a rank of this topology and print the seconds of a step.");
ABSL_FLAG(std::vector<std::string>, topologies,
          std::vector<std::string>({"dp2", "dp2_zero2", "tp2", "tp2_sp", "pp2"}),
          "What to measure.");
ABSL_FLAG(int, rounds, 2, "Rounds behind each median.");
ABSL_FLAG(int, steps, 2, "Steps of one run behind its median, after one to warm up.");
ABSL_FLAG(int64_t, sequence, 256, "Tokens of a sequence.");
ABSL_FLAG(bool, bf16, false, "bf16 in place of fp32.");

namespace tessera {
namespace {

constexpr int64_t kMicroBatches = 8;

absl::Status TimeSteps(Communicator& world) {
  const std::string topology = absl::GetFlag(FLAGS_rank_of);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> run,
                           Gpt2Run::Create({.topology = topology,
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

std::string SelfPath() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), length) : "";
}

// Duration of a step of `topology`, measured in a separate process.
absl::StatusOr<double> Seconds(const std::string& topology) {
  TESSERA_ASSIGN_OR_RETURN(const Topology sizes, ParseTopology(topology));
  const std::string command = absl::StrCat(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to ",
      "none -n ", sizes.world_size(), " '", SelfPath(), "' --rank_of=", topology,
      " --steps=", absl::GetFlag(FLAGS_steps), " --sequence=", absl::GetFlag(FLAGS_sequence),
      " --bf16=", absl::GetFlag(FLAGS_bf16));
  std::FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return absl::InternalError("no process for mpirun");
  std::string text;
  std::array<char, 256> line{};
  double seconds = 0;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    text += line.data();
    std::sscanf(line.data(), "seconds %lf", &seconds);
  }
  const int status = pclose(output);
  if (status == 0 && seconds > 0) return seconds;
  return absl::InternalError(absl::StrCat(topology, " failed: ", text));
}

// The pipeline bubble: the share of a rank's time that it necessarily waits.
double Bubble(const std::string& topology) {
  const absl::StatusOr<Topology> sizes = ParseTopology(topology);
  return BubbleShare({.ranks = sizes->pipeline,
                      .chunks = sizes->virtual_pipeline,
                      .micro_batches = kMicroBatches / sizes->data});
}

absl::Status Measure() {
  const std::vector<std::string> topologies = absl::GetFlag(FLAGS_topologies);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  std::map<std::string, std::vector<double>> efficiencies;
  for (int round = 0; round < rounds; ++round) {
    std::fprintf(stderr, "round %d of %d: alone\n", round + 1, rounds);
    TESSERA_ASSIGN_OR_RETURN(const double alone, Seconds("single"));
    for (const std::string& topology : topologies) {
      std::fprintf(stderr, "round %d of %d: %s\n", round + 1, rounds, topology.c_str());
      TESSERA_ASSIGN_OR_RETURN(const double parallel, Seconds(topology));
      const double ideal = alone / (1 - Bubble(topology));
      std::printf("%s: %.3f s, alone %.3f s, ideal %.3f s\n", topology.c_str(), parallel, alone,
                  ideal);
      efficiencies[topology].push_back(ideal / parallel);
    }
  }
  for (const std::string& topology : topologies) {
    std::printf("figure parallel.%s.efficiency %.3f ratio\n", topology.c_str(),
                Median(efficiencies[topology]));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_rank_of).empty()) return tessera::RunMpiRank({}, tessera::TimeSteps);
  const absl::Status status = tessera::Measure();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
