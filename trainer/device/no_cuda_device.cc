// A program without CUDA.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/device/cuda_device.h"
#include "trainer/device/training_device.h"

namespace tessera {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it with --config=cuda to train on GPUs");
}

}  // namespace

int CudaDeviceCount() { return 0; }

absl::Status SelectCudaDevice(int /*index*/) { return BuiltWithoutCuda(); }

absl::StatusOr<std::unique_ptr<TrainingDevice>> OpenCudaDevice(
    int /*index*/, const CudaDeviceOptions& /*options*/) {
  return BuiltWithoutCuda();
}

}  // namespace tessera
