// How near a whole training step of GPT-2 124M comes to the matrix rate of this machine, and to the
// memory that it must hold. For each dtype and shape (train_step.<dtype>.<batch>x<sequence>):
//
// - gemm_peak_ratio: model FLOP/s over the best GEMM rate of that dtype (gemm_peak.h), measured in
//   turns with the steps;
// - memory_ratio: peak resident memory of the process over the sum of weights, gradients, optimizer
//   state and activations.
//
// Each case runs in a separate process, so that its peak memory is its own.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "layout/dtype.h"
#include "tests/perf/gemm_peak.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"

namespace tessera {
namespace {

constexpr int kRounds = 3;
constexpr int kStepsPerRound = 3;

struct Case {
  DType dtype;
  int64_t batch;
  int64_t sequence;

  std::string name() const {
    return "train_step." + std::string(dtype == DType::kF32 ? "fp32" : "bf16") + "." +
           std::to_string(batch) + "x" + std::to_string(sequence);
  }
};

void Figure(const Case& which, const char* name, double value, const char* unit) {
  PrintFigure(which.name() + "." + name, value, unit);
}

double Step(Gpt2Run& run) {
  const absl::StatusOr<double> seconds = run.Step();
  CHECK(seconds.ok()) << seconds.status();
  return *seconds;
}

void Measure(const Case& which) {
  absl::StatusOr<std::unique_ptr<Gpt2Run>> made =
      Gpt2Run::Create({.threads = AllProcessors(),
                       .bf16 = which.dtype == DType::kBF16,
                       .micro_batch = which.batch,
                       .sequence = which.sequence},
                      nullptr);
  CHECK(made.ok()) << made.status();
  Gpt2Run& run = **made;
  Step(run);
  Step(run);
  const Trainer::Memory memory = run.trainer().memory();
  const double needed = static_cast<double>(memory.weights + memory.gradients + memory.optimizer +
                                            memory.activations);
  const double memory_ratio = PeakResidentBytes() / needed;
  std::vector<double> seconds, peaks;
  for (int round = 0; round < kRounds; ++round) {
    peaks.push_back(BestGemmRate(which.dtype));
    for (int step = 0; step < kStepsPerRound; ++step) seconds.push_back(Step(run));
  }
  const double median = Median(seconds);
  const double tokens = static_cast<double>(which.batch * which.sequence);
  const double flops = run.trainer().FlopsPerToken() * tokens;
  Figure(which, "step_seconds", median, "s");
  Figure(which, "tokens_per_second", tokens / median, "tokens/s");
  Figure(which, "model_flops_per_second", flops / median, "FLOP/s");
  Figure(which, "gemm_peak", Median(peaks), "FLOP/s");
  Figure(which, "gemm_peak_ratio", flops / median / Median(peaks), "ratio");
  Figure(which, "memory_needed", needed, "bytes");
  Figure(which, "memory_ratio", memory_ratio, "ratio");
}

int Main() {
  for (const Case& which : {Case{DType::kF32, 4, 64}, Case{DType::kF32, 1, 1024},
                            Case{DType::kBF16, 4, 64}, Case{DType::kBF16, 1, 1024}}) {
    std::fprintf(stderr, "%s\n", which.name().c_str());
    const pid_t child = fork();
    if (child == 0) {
      Measure(which);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      std::fprintf(stderr, "train_step: %s ended with status %d\n", which.name().c_str(), status);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main() { return tessera::Main(); }
