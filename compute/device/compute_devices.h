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

  // A name of each GPU that this process sees, the same in all processes that see it. At least one.
  virtual absl::StatusOr<std::vector<std::string>> Find() = 0;

  // Opens GPU `index` of these, which becomes the current device of the calling thread. Products of
  // fp32 operands have the bits of processors in EXACT numerics with `exact_products`.
  virtual absl::StatusOr<std::unique_ptr<TrainingDevice>> Open(int index, bool exact_products) = 0;

  // What the bits of its results depend on.
  virtual NumericsFingerprint Numerics(TrainingDevice& device) = 0;

  // NCCL for a rank. `device` and this object outlive it.
  virtual absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(TrainingDevice& device) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_COMPUTE_DEVICES_H_
