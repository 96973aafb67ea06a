#ifndef TESSERA_TENSOR_CUDA_RUNTIME_H_
#define TESSERA_TENSOR_CUDA_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor/device_runtime.h"

namespace tessera {

// Returns the number of GPUs that this process sees.
int CountCudaDevices();
// Returns the number of GPUs that this process sees; NotFound, with the driver's reason, if it is
// zero.
absl::StatusOr<int> FindCudaDevices();

struct CudaDeviceInfo {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // of the compute capability
  int minor = 0;
  int multiprocessors = 0;
  int64_t shared_bytes_of_block = 0;  // the most that a kernel may ask for
  std::string uuid;  // the same in every process, and of a part of a GPU (MIG) its own
};
absl::StatusOr<CudaDeviceInfo> DescribeCudaDevice(int device);
// Returns "NVIDIA H200, sm_90, 132 multiprocessors". cuBLASLt chooses algorithms by the number of
// multiprocessors, which differs between GPUs of one name and between the parts of one.
std::string TypeOf(const CudaDeviceInfo& info);

// Makes a GPU the current device of the calling thread.
absl::Status UseCudaDevice(int device);

// Makes a GPU the current device of the calling thread, and returns its runtime. Memory comes from
// the device's default pool, which keeps freed memory. NotFound if there is no such device.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int device);

}  // namespace tessera

#endif  // TESSERA_TENSOR_CUDA_RUNTIME_H_
