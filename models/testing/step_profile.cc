// Profiles a training step: forward and backward of a named model, by operation.
//
//   bazel run //models/testing:step_profile -- gpt2-124m 4 64 float32 [threads [shards]]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/steady_time.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/parallel/tensor_parallel.h"
#include "glog/logging.h"
#include "models/testing/profiling_backend.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

void Print(const std::string& name, const testing::ProfilingBackend::Total& total,
           double step_seconds) {
  std::printf("%9.2f ms %5.1f %% %5lld calls  %-34s", 1e3 * total.seconds,
              100 * total.seconds / step_seconds, static_cast<long long>(total.calls),
              name.c_str());
  if (total.flops > 0) std::printf(" %7.1f GFLOP/s", total.flops / total.seconds / 1e9);
  std::printf("\n");
}

int Run(const std::string& size, int64_t batch, int64_t sequence, bool bf16, int threads,
        int shards) {
  constexpr int kSteps = 5;
  const auto cpu = MakeCpuBackend(threads);
  testing::ProfilingBackend backend(*cpu);
  ModelConfig config;
  config.set_size(size);
  ModelOptions options;
  options.compute_dtype = bf16 ? DType::kBF16 : DType::kF32;
  const TensorParallel tensor_parallel(nullptr, shards, /*sequence_parallel=*/false);
  options.tensor_parallel = &tensor_parallel;
  const auto model = testing::MakeTestModel(config, options, backend);
  const absl::Duration start = SteadyNow();
  model->parameters().Initialize(1);
  std::printf("initialised in %.2f s\n", SecondsSince(start));
  const testing::TestBatch data = testing::MakeTestBatch(batch, sequence, 256, 1);
  const auto activations = model->NewActivations(batch, sequence, ActivationUse::kTraining);
  std::printf("activations %.1f MB\n", static_cast<double>(activations->bytes()) / 1e6);

  // The minimum over several steps, operation by operation: other load on the machine only adds.
  std::map<std::string, testing::ProfilingBackend::Total> least;
  double least_step = 1e9;
  for (int step = 0; step <= kSteps; ++step) {
    const absl::Duration begin = SteadyNow();
    CHECK(model->Forward(data.batch, *activations, {}, {}).ok());
    CHECK(model->Backward(data.batch, *activations, 1e-3, /*accumulate=*/false, {}, {}, nullptr)
              .ok());
    const double seconds = SecondsSince(begin);
    const auto totals = backend.Take();
    if (step == 0) continue;  // first touch of memory, first shapes
    least_step = std::min(least_step, seconds);
    for (const auto& [name, total] : totals) {
      const auto [it, first] = least.emplace(name, total);
      if (!first && total.seconds < it->second.seconds) it->second = total;
    }
  }
  std::vector<std::pair<double, std::string>> order;
  double sum = 0;
  for (const auto& [name, total] : least) {
    order.emplace_back(-total.seconds, name);
    sum += total.seconds;
  }
  std::sort(order.begin(), order.end());
  for (const auto& [seconds, name] : order) Print(name, least[name], sum);
  const double flops = model->FlopsPerToken(sequence) * static_cast<double>(batch * sequence);
  std::printf("step: %.1f ms the least, %.1f ms the sum of the operations' least, %.1f GFLOP/s\n",
              1e3 * least_step, 1e3 * sum, flops / least_step / 1e9);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s SIZE BATCH SEQUENCE float32|bfloat16 [THREADS [SHARDS]]\n",
                 argv[0]);
    return 2;
  }
  const int threads =
      argc > 5 ? std::atoi(argv[5]) : static_cast<int>(std::thread::hardware_concurrency());
  return tessera::Run(argv[1], std::atoll(argv[2]), std::atoll(argv[3]),
                      std::string(argv[4]) == "bfloat16", threads,
                      argc > 6 ? std::atoi(argv[6]) : 1);
}
