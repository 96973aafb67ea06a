// How near a whole training step of GPT-2 124M comes to the matrix rate of this machine, and to the
// memory that it must hold. For each dtype and shape (train_step.<dtype>.<batch>x<sequence>):
//
// - gemm_peak_ratio: model FLOP/s over the best oneDNN GEMM rate of that dtype, measured in turns
//   with the steps;
// - memory_ratio: peak resident memory of the process over the sum of weights, gradients, optimizer
//   state and activations.
//
// Each case runs in a process of its own, so that its peak memory is its own.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "models/config.pb.h"
#include "models/factory.h"
#include "models/model.h"
#include "tests/perf/gemm_peak.h"
#include "tests/perf/raw_disk.h"
#include "trainer/config/config.pb.h"
#include "trainer/kernels/cpu/cpu_backend.h"
#include "trainer/optim/adamw.h"
#include "trainer/random/philox.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

constexpr int kRounds = 3;
constexpr int kStepsPerRound = 5;
constexpr int64_t kVocabulary = 50257;

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
  std::printf("figure %s.%s %.4g %s\n", which.name().c_str(), name, value, unit);
  std::fflush(stdout);
}

// Token ids of one fixed batch: what they are changes nothing about the time.
Tensor RandomTokens(const Case& which, uint64_t stream) {
  Tensor ids(DType::kI32, {which.batch, which.sequence});
  const RandomStream random{.seed = 1, .use = RandomUse::kDataOrder, .stream = stream};
  for (int64_t i = 0; i < ids.view().elements(); ++i) {
    ids.view().as<int32_t>()[i] = static_cast<int32_t>(RandomWord(random, i) % kVocabulary);
  }
  return ids;
}

// The parts of one optimizer step on one micro-batch.
class Trainer {
 public:
  explicit Trainer(const Case& which)
      : which_(which),
        backend_(MakeCpuBackend(static_cast<int>(std::thread::hardware_concurrency()))),
        ids_(RandomTokens(which, 1)),
        targets_(RandomTokens(which, 2)) {
    ModelConfig config;
    config.set_size("gpt2-124m");
    absl::StatusOr<std::unique_ptr<Model>> model =
        MakeModel(config, {.compute_dtype = which.dtype}, *backend_);
    CHECK(model.ok()) << model.status();
    model_ = *std::move(model);
    ParameterSet& parameters = model_->parameters();
    parameters.Initialize(1234);
    std::vector<FlatParameter> flat;
    for (const Parameter* parameter : parameters.parameters()) {
      flat.push_back({.flat_offset = parameter->flat_offset,
                      .elements = ElementCount(parameter->shape),
                      .weight_decay = parameter->weight_decay});
      grads_.push_back(parameter->grad);
    }
    optimizer_ = std::make_unique<AdamW>(
        *backend_, OptimizerConfig(), std::move(flat),
        std::vector<OwnedRange>{
            {0, parameters.flat_elements(), parameters.values(), parameters.grads()}},
        which.dtype);
    activations_ = model_->NewActivations(which.batch, which.sequence, ActivationUse::kTraining);
  }

  // Seconds of one step.
  double Step() {
    const auto start = std::chrono::steady_clock::now();
    const MicroBatch batch{.ids = ids_, .targets = targets_, .training = true};
    CHECK(model_->Forward(batch, *activations_, {}, {}).ok());
    CHECK(model_
              ->Backward(batch, *activations_, 1.0 / static_cast<double>(tokens()),
                         /*accumulate=*/false, {}, {}, nullptr)
              .ok());
    const double norm = GradNorm(*backend_, grads_);
    optimizer_->Step(1e-4, norm, ClipCoefficient(norm, 1.0));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  int64_t tokens() const { return which_.batch * which_.sequence; }
  double flops() const {
    return model_->FlopsPerToken(which_.sequence) * static_cast<double>(tokens());
  }
  int64_t needed_bytes() const {
    return model_->parameters().values().view().bytes() +
           model_->parameters().grads().view().bytes() + optimizer_->state_bytes() +
           activations_->bytes();
  }

 private:
  const Case which_;
  const std::unique_ptr<Backend> backend_;
  const Tensor ids_;
  const Tensor targets_;
  std::unique_ptr<Model> model_;
  std::vector<TensorView> grads_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Activations> activations_;
};

double PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

void Measure(const Case& which) {
  Trainer trainer(which);
  trainer.Step();
  trainer.Step();
  const double memory_ratio = PeakResidentBytes() / static_cast<double>(trainer.needed_bytes());
  std::vector<double> seconds, peaks;
  for (int round = 0; round < kRounds; ++round) {
    peaks.push_back(BestGemmRate(which.dtype));
    for (int step = 0; step < kStepsPerRound; ++step) seconds.push_back(trainer.Step());
  }
  const double median = Median(seconds);
  Figure(which, "step_seconds", median, "s");
  Figure(which, "tokens_per_second", static_cast<double>(trainer.tokens()) / median, "tokens/s");
  Figure(which, "model_flops_per_second", trainer.flops() / median, "FLOP/s");
  Figure(which, "gemm_peak", Median(peaks), "FLOP/s");
  Figure(which, "gemm_peak_ratio", trainer.flops() / median / Median(peaks), "ratio");
  Figure(which, "memory_needed", static_cast<double>(trainer.needed_bytes()), "bytes");
  Figure(which, "memory_ratio", memory_ratio, "ratio");
}

int Main() {
  for (const Case& which : {Case{DType::kF32, 4, 64}, Case{DType::kF32, 1, 1024},
                            Case{DType::kBF16, 4, 64}, Case{DType::kBF16, 1, 1024}}) {
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
