#include "trainer/app/measurements.h"

#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <span>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "comm/communicator.h"
#include "compute/device/training_device.h"
#include "layout/dtype.h"
#include "tensor/device_runtime.h"
#include "trainer/step/product_rate.h"

namespace tessera {
namespace {

// FLOPs of a run. Measuring the speed takes longer than a run that has fewer.
constexpr double kLeastMeasuredFlops = 1e11;

// Returns the rate of matrix products that all ranks reach together, each with its own threads and
// at the same time; 0 if it is unknown, since a rank has no memory left for them.
absl::StatusOr<double> MeasurePeak(const Session& session) {
  Communicator* const world = session.mesh->world();
  if (world != nullptr) TESSERA_RETURN_IF_ERROR(world->Barrier({.what = "speed of the ranks"}));
  TESSERA_ASSIGN_OR_RETURN(
      const double peak,
      MeasureProductRate(session.backend(),
                         session.config.training().bf16() ? DType::kBF16 : DType::kF32));
  // The memory of the products would stay with this process, beside what it has announced.
  if (TrainingDevice* const gpu = session.device->gpu(); gpu != nullptr) {
    gpu->context->runtime().TrimMemory();
  }
  if (world == nullptr) return peak;
  std::array<double, 2> sums = {peak, peak > 0 ? 1.0 : 0.0};
  TESSERA_RETURN_IF_ERROR(world->AllReduce(std::span(sums.data(), sums.size()), ReduceOp::kSum,
                                           {.what = "speed of the ranks"}));
  return sums[1] < world->size() ? 0 : sums[0];
}

}  // namespace

UsedMemory MeasureMemory(const Session& session) {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  UsedMemory used = {.host = int64_t{usage.ru_maxrss} * 1024};
  if (TrainingDevice* const gpu = session.device->gpu(); gpu != nullptr) {
    const absl::StatusOr<DeviceRuntime::MemoryInfo> memory = gpu->context->runtime().Memory();
    if (memory.ok()) used.gpu = memory->total_bytes - memory->free_bytes;
  }
  return used;
}

bool TimeIsUp(const Session& session) {
  const double minutes = session.config.training().exit_duration_in_mins();
  return minutes > 0 && SteadyNow() - session.began >= absl::Minutes(minutes);
}

absl::StatusOr<std::optional<EvalMetrics>> EvaluateSession(const Session& session,
                                                           const StopEvaluation& stop) {
  const TrainingConfig& training = session.config.training();
  const absl::Duration start = SteadyNow();
  TESSERA_ASSIGN_OR_RETURN(
      const EvaluationResult result,
      session.trainer->Evaluate(*session.valid_data->loader,
                                training.eval_iters() * training.global_batch_size(), stop));
  if (result.stopped) return std::nullopt;
  return EvalMetrics{.step = session.progress.step,
                     .loss = result.loss,
                     .tokens = result.tokens,
                     .seconds = SecondsSince(start)};
}

absl::StatusOr<RateMeter::Options> RateOptions(const Session& session) {
  const TrainingConfig& training = session.config.training();
  RateMeter::Options options = {
      .total_steps = training.train_iters(),
      .tokens_per_step = training.global_batch_size() * training.seq_length(),
      .flops_per_token = session.trainer->FlopsPerToken()};
  const double flops = options.flops_per_token * static_cast<double>(options.tokens_per_step) *
                       static_cast<double>(options.total_steps);
  if (flops >= kLeastMeasuredFlops) {
    TESSERA_ASSIGN_OR_RETURN(options.peak_flops, MeasurePeak(session));
  }
  return options;
}

}  // namespace tessera
