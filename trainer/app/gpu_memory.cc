#include "trainer/app/gpu_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "compute/tensor/device_runtime.h"
#include "models/model_config.h"
#include "trainer/app/host_memory.h"

namespace tessera {
absl::Status CheckModelFitsGpu(const TrainConfig& config, bool trains, TrainingDevice& gpu) {
  TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::MemoryInfo memory, gpu.context->runtime().Memory());
  const StateBytes state = EstimateState(config, trains);
  if (state.sum() <= memory.free_bytes) return absl::OkStatus();
  std::string parts = absl::StrCat("weights ", HumanBytes(state.weights));
  if (trains) {
    absl::StrAppend(&parts, ", gradients ", HumanBytes(state.gradients), ", optimizer ",
                    HumanBytes(state.optimizer));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a model of ", ParameterCount(config.model()), " weights needs ", HumanBytes(state.sum()),
      " of GPU memory in this process", trains ? " to train" : "", " (", parts, "), of which ",
      HumanBytes(memory.free_bytes), " are free: the GPU (", gpu.type, ") has ",
      HumanBytes(memory.total_bytes),
      "; more GPUs share a model with --tensor-model-parallel-size, "
      "--pipeline-model-parallel-size and --zero-stage"));
}

absl::StatusOr<int64_t> SpareBesideStaging(int64_t staged, int64_t available,
                                           const HostShare& host) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t needed, host.Sum(staged));
  if (needed <= available) return (available - needed) / host.ranks();
  return absl::ResourceExhaustedError(absl::StrCat(
      "checkpoints need ", HumanBytes(needed), " of pinned host memory for copies of GPU state",
      host.ranks() == 1 ? "" : absl::StrCat(" for the ", host.ranks(), " processes here"),
      ", of which ", HumanBytes(available), " are available"));
}

}  // namespace tessera
