// What EXACT numerics cost: optimizer steps of a sixth of GPT-2 124M, which has the same shapes, on
// one process, EXACT over FAST, the two in turn. For each dtype and number of virtual shards
//   figure exact.<dtype>.shards<S>.overhead <median over rounds of the ratio> ratio
// and, for two shards in fp32, the least with which a run can move between tp1 and tp2,
//   figure exact.overhead ...
// With --profile also the least times of each operation, since other load on the machine only adds,
// FAST and EXACT, largest difference first.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"

ABSL_FLAG(int, rounds, 3, "Pairs of steps behind each median.");
ABSL_FLAG(std::vector<std::string>, dtypes, (std::vector<std::string>{"fp32", "bf16"}),
          "Measured.");
ABSL_FLAG(std::vector<std::string>, shards, (std::vector<std::string>{"1", "2", "4"}),
          "Numbers of virtual shards.");
ABSL_FLAG(bool, profile, false, "Measure each operation.");
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
                          .sequence = absl::GetFlag(FLAGS_sequence),
                          .profile = absl::GetFlag(FLAGS_profile)},
                         nullptr);
}

// The seconds of each operation, step by step: of FAST, of EXACT.
class Profile {
 public:
  // Adds a step of both.
  void Add(Gpt2Run& fast, Gpt2Run& exact) {
    Gpt2Run* const runs[] = {&fast, &exact};
    for (int side = 0; side < 2; ++side) {
      for (const auto& [name, total] : runs[side]->TakeProfile()) {
        operations_[name].seconds[side].push_back(total.seconds);
        operations_[name].flops = total.flops;
      }
    }
  }

  void Print() const {
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [name, operation] : operations_) {
      order.emplace_back(operation.Of(0) - operation.Of(1), name);
    }
    std::ranges::sort(order);
    std::printf("%9s %9s ms, %9s %9s GFLOP/s\n", "FAST", "EXACT", "FAST", "EXACT");
    for (const auto& [difference, name] : order) {
      const Operation& operation = operations_.at(name);
      std::printf("%9.2f %9.2f", 1e3 * operation.Of(0), 1e3 * operation.Of(1));
      for (int side = 0; side < 2; ++side) {
        const double seconds = operation.Of(side);
        std::printf(" %9.0f", seconds == 0 ? 0 : operation.flops / seconds / 1e9);
      }
      std::printf("  %s\n", name.c_str());
    }
  }

 private:
  struct Operation {
    double Of(int side) const {
      return seconds[side].empty() ? 0 : *std::ranges::min_element(seconds[side]);
    }

    std::vector<double> seconds[2];
    double flops = 0;
  };
  std::map<std::string, Operation> operations_;
};

absl::StatusOr<double> Overhead(Gpt2Run& fast, Gpt2Run& exact) {
  Pairs seconds;
  Profile warm_up, profile;
  const bool profiles = absl::GetFlag(FLAGS_profile);
  const auto step = [&](int round) -> absl::Status {
    // The order alternates.
    Gpt2Run& first = round % 2 == 0 ? fast : exact;
    Gpt2Run& second = round % 2 == 0 ? exact : fast;
    TESSERA_ASSIGN_OR_RETURN(double fast_time, first.Step());
    TESSERA_ASSIGN_OR_RETURN(double exact_time, second.Step());
    if (round % 2 != 0) std::swap(fast_time, exact_time);
    if (round >= 0) seconds.Add(exact_time, fast_time);
    if (profiles) (round < 0 ? warm_up : profile).Add(fast, exact);
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(step(-1));  // warm-up: memory is touched, products are created
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), step));
  if (profiles) profile.Print();
  std::printf("FAST %.3f s, EXACT %.3f s\n", seconds.theirs(), seconds.ours());
  return seconds.Ratio();
}

absl::Status Measure() {
  for (const std::string& dtype : absl::GetFlag(FLAGS_dtypes)) {
    const bool bf16 = dtype == "bf16";
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Gpt2Run> fast, MakeRun(bf16, 0));
    for (const std::string& count : absl::GetFlag(FLAGS_shards)) {
      int shards = 0;
      if (!absl::SimpleAtoi(count, &shards)) return absl::InvalidArgumentError(count);
      const std::string name = absl::StrCat(dtype, ".shards", shards);
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
