#ifndef TESSERA_COMPUTE_DEVICE_TRAINING_DEVICE_H_
#define TESSERA_COMPUTE_DEVICE_TRAINING_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/nccl/device_reducer.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/products.h"
#include "tensor/device.h"
#include "tensor/device_tensors.h"
#include "tensor/host_copies.h"
#include "tensor/tensor.h"

namespace tessera {

// A GPU, or a simulated one, as a rank of a training run uses it. Makes Tensor(dtype, shape,
// device) work during its lifetime; all such tensors must be destroyed before it.
//
// Threads: as each member. Work of the training thread is queued on `compute`; NCCL and staging
// have streams of their own, made from the context.
struct TrainingDevice {
  virtual ~TrainingDevice() = default;

  Device device;
  // "NVIDIA H200, sm_90, 132 multiprocessors": devices of one type compute the same bits.
  std::string type;
  std::string products;                   // the library of matrix products and its version
  int64_t shared_bytes_of_block = 0;      // the most that a kernel may ask for
  bool multiplies_by_warpgroups = false;  // compute capability 9.0
  std::unique_ptr<DeviceContext> context;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<DeviceTensors> tensors;
  std::unique_ptr<HostCopies> copies;  // on `compute`
  std::unique_ptr<Backend> backend;    // on `compute`, by `choices`
  cuda::ProductChoices choices;
  // Returns another backend on `compute`, by other choices; the errors of CheckChoices().
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const cuda::ProductChoices&)> make_backend;
  // Returns another backend on `compute`, which computes the bits of processors in EXACT numerics
  // (DeviceNumerics::kExact).
  std::function<std::unique_ptr<Backend>()> make_exact_backend;
  std::unique_ptr<DeviceReducer> reducer;  // for NcclWorld
};

// Returns FailedPrecondition, with the reason, if the device cannot compute in one of these ways,
// with heads of any size.
absl::Status CheckChoices(const TrainingDevice& device, const cuda::ProductChoices& choices);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_TRAINING_DEVICE_H_
