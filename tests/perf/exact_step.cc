// What EXACT numerics cost: optimizer steps of a sixth of GPT-2 124M, which has the same shapes, on
// one process, EXACT over FAST, the two in turn. For each dtype and number of virtual shards
//   figure exact.<dtype>.shards<S>.overhead <median over rounds of the ratio> ratio
// and, for two shards in fp32, the least with which a run can move between tp1 and tp2,
//   figure exact.overhead ...

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"

ABSL_FLAG(int, rounds, 3, "Pairs of steps behind each median.");
ABSL_FLAG(int, layers, 2, "Of GPT-2's twelve, with as much of its vocabulary.");
ABSL_FLAG(int64_t, sequence, 512, "Tokens of a sequence.");
ABSL_FLAG(int64_t, micro_batch, 2, "Sequences of a micro-batch.");
ABSL_FLAG(int64_t, micro_batches, 1, "Micro-batches of a step.");

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Gpt2Run>> MakeRun(bool bf16, int shards) {
  return Gpt2Run::Create({.layers = absl::GetFlag(FLAGS_layers),
                          .threads = static_cast<int>(std::thread::hardware_concurrency()),
                          .bf16 = bf16,
                          .exact_tp_shards = shards,
                          .micro_batch = absl::GetFlag(FLAGS_micro_batch),
                          .micro_batches = absl::GetFlag(FLAGS_micro_batches),
                          .sequence = absl::GetFlag(FLAGS_sequence)},
                         nullptr);
}

absl::StatusOr<double> Overhead(Gpt2Run& fast, Gpt2Run& exact) {
  Pairs seconds;
  const auto step = [&](int round) -> absl::Status {
    // The order alternates.
    Gpt2Run& first = round % 2 == 0 ? fast : exact;
    Gpt2Run& second = round % 2 == 0 ? exact : fast;
    TESSERA_ASSIGN_OR_RETURN(double fast_time, first.Step());
    TESSERA_ASSIGN_OR_RETURN(double exact_time, second.Step());
    if (round % 2 != 0) std::swap(fast_time, exact_time);
    if (round >= 0) seconds.Add(exact_time, fast_time);
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(step(-1));  // warm-up: memory is touched, products are created
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), step));
  std::printf("FAST %.3f s, EXACT %.3f s\n", seconds.theirs(), seconds.ours());
  return seconds.Ratio();
}

absl::Status Measure() {
  for (const bool bf16 : {false, true}) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> fast, MakeRun(bf16, 0));
    for (const int shards : {1, 2, 4}) {
      const std::string name = absl::StrCat(bf16 ? "bf16" : "fp32", ".shards", shards);
      std::fprintf(stderr, "%s\n", name.c_str());
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> exact, MakeRun(bf16, shards));
      TESSERA_ASSIGN_OR_RETURN(const double overhead, Overhead(*fast, *exact));
      PrintFigure(absl::StrCat("exact.", name, ".overhead"), overhead);
      if (!bf16 && shards == 2) PrintFigure("exact.overhead", overhead);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("exact_step", tessera::Measure);
}
