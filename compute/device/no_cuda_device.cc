// A program without CUDA.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/nccl/nccl_api.h"
#include "compute/device/compute_devices.h"
#include "compute/device/cuda_device.h"
#include "compute/device/training_device.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it with --config=cuda to train on GPUs");
}

class NoCudaDevices final : public ComputeDevices {
 public:
  absl::StatusOr<std::vector<std::string>> Find() override { return BuiltWithoutCuda(); }
  absl::StatusOr<std::unique_ptr<TrainingDevice>> Open(int /*index*/,
                                                       DeviceNumerics /*numerics*/) override {
    return BuiltWithoutCuda();
  }
  NumericsFingerprint Numerics(TrainingDevice& /*device*/) override { return {}; }
  absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(TrainingDevice& /*device*/) override {
    return BuiltWithoutCuda();
  }
};

}  // namespace

int CudaDeviceCount() { return 0; }

absl::StatusOr<std::unique_ptr<TrainingDevice>> OpenCudaDevice(int /*index*/,
                                                               DeviceNumerics /*numerics*/) {
  return BuiltWithoutCuda();
}

std::unique_ptr<ComputeDevices> MakeCudaDevices() { return std::make_unique<NoCudaDevices>(); }

}  // namespace tessera
