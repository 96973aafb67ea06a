// What EXACT numerics cost: optimizer steps of GPT-2 124M on one process, EXACT over FAST, the two
// in turn. For each dtype and number of virtual shards
//   figure exact.<dtype>.shards<S>.overhead <median over rounds of the ratio> ratio
// and, for two shards in fp32, the least with which a run can move between tp1 and tp2,
//   figure exact.overhead ...

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(int, rounds, 3, "Pairs of steps behind each median.");
ABSL_FLAG(int64_t, sequence, 512, "Tokens of a sequence.");
ABSL_FLAG(int64_t, micro_batch, 2, "Sequences of a micro-batch.");
ABSL_FLAG(int64_t, micro_batches, 1, "Micro-batches of a step.");

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Gpt2Run>> MakeRun(bool bf16, int shards) {
  return Gpt2Run::Create({.threads = static_cast<int>(std::thread::hardware_concurrency()),
                          .bf16 = bf16,
                          .exact_tp_shards = shards,
                          .micro_batch = absl::GetFlag(FLAGS_micro_batch),
                          .micro_batches = absl::GetFlag(FLAGS_micro_batches),
                          .sequence = absl::GetFlag(FLAGS_sequence)},
                         nullptr);
}

absl::StatusOr<double> Overhead(bool bf16, int shards) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> fast, MakeRun(bf16, 0));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> exact, MakeRun(bf16, shards));
  std::vector<double> ratios, fast_s, exact_s;
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    // The order alternates.
    Gpt2Run& first = round % 2 == 0 ? *fast : *exact;
    Gpt2Run& second = round % 2 == 0 ? *exact : *fast;
    TESSERA_ASSIGN_OR_RETURN(double fast_time, first.Step());
    TESSERA_ASSIGN_OR_RETURN(double exact_time, second.Step());
    if (round % 2 != 0) std::swap(fast_time, exact_time);
    if (round < 0) continue;  // warm-up: memory is touched, products are created
    fast_s.push_back(fast_time);
    exact_s.push_back(exact_time);
    ratios.push_back(exact_time / fast_time);
  }
  std::printf("%s, %d shards: FAST %.3f s, EXACT %.3f s\n", bf16 ? "bf16" : "fp32", shards,
              Median(fast_s), Median(exact_s));
  return Median(ratios);
}

absl::Status Measure() {
  for (const bool bf16 : {false, true}) {
    for (const int shards : {1, 2, 4}) {
      std::fprintf(stderr, "%s, %d shards\n", bf16 ? "bf16" : "fp32", shards);
      TESSERA_ASSIGN_OR_RETURN(const double overhead, Overhead(bf16, shards));
      std::printf("figure exact.%s.shards%d.overhead %.3f ratio\n", bf16 ? "bf16" : "fp32", shards,
                  overhead);
      if (!bf16 && shards == 2) std::printf("figure exact.overhead %.3f ratio\n", overhead);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = tessera::Measure();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
