#ifndef TESSERA_COMPUTE_DEVICE_COMPUTE_DEVICES_H_
#define TESSERA_COMPUTE_DEVICE_COMPUTE_DEVICES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/nccl_api.h"
#include "compute/device/training_device.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

// The GPUs of this process, or simulated ones. Every error is one sentence that says what is
// missing: CUDA in the build, the driver, a GPU, a library. Thread-safe.
class ComputeDevices {
 public:
  virtual ~ComputeDevices() = default;

  // Returns a name of each GPU that this process sees, at least one. A GPU has the same name in all
  // processes that see it.
  virtual absl::StatusOr<std::vector<std::string>> Find() = 0;

  // Opens GPU `index` of Find(), which becomes the current device of the calling thread. With
  // DeviceNumerics::kExact, FailedPrecondition if its arithmetic is not IEEE 754's
  // (kernels/cuda/device_backend.h).
  virtual absl::StatusOr<std::unique_ptr<TrainingDevice>> Open(int index,
                                                               DeviceNumerics numerics) = 0;

  // Returns what the bits of the device's results depend on in FAST numerics.
  virtual NumericsFingerprint Numerics(TrainingDevice& device) = 0;

  // Returns the results of the contract's fixed examples, in fp32, on a device of EXACT numerics.
  virtual FixedResults ExactResults(TrainingDevice& device) {
    return ComputeFixedResults(*device.backend, /*bf16=*/false);
  }

  // Opens NCCL for a rank. `device` and this object must outlive it.
  virtual absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(TrainingDevice& device) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_COMPUTE_DEVICES_H_
