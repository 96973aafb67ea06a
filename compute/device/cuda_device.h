#ifndef TESSERA_COMPUTE_DEVICE_CUDA_DEVICE_H_
#define TESSERA_COMPUTE_DEVICE_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "compute/device/compute_devices.h"
#include "compute/device/training_device.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

// Returns the number of GPUs that this process sees; 0 in a program that was built without CUDA.
int CudaDeviceCount();

// Opens cuBLASLt and GPU `index`, which becomes the current device of the calling thread. Other
// threads call Select() of the context's runtime before they use objects made from the device.
//
// Errors:
// - NotFound if there is no such GPU or no cuBLASLt;
// - FailedPrecondition in a program that was built without CUDA, and for a GPU that the program was
//   not built for;
// - FailedPrecondition, where `numerics` is kExact, for a GPU whose arithmetic is not IEEE 754's.
absl::StatusOr<std::unique_ptr<TrainingDevice>> OpenCudaDevice(
    int index, DeviceNumerics numerics = DeviceNumerics::kFast);

// Returns the GPUs that this process sees.
std::unique_ptr<ComputeDevices> MakeCudaDevices();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_CUDA_DEVICE_H_
