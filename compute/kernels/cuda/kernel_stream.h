#ifndef TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_

// KernelStream(stream).get() is what simt::Launch() takes to queue kernels on a Stream of device.h.
// KeepErrors() hands errors of launches to the stream's context. The simulated device needs a
// FakeDeviceRuntime behind the stream.

#ifdef __CUDACC__

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/device.h"

namespace tessera::cuda {

class KernelStream {
 public:
  explicit KernelStream(const Stream& stream)
      : context_(stream.context()), stream_(static_cast<simt::Stream>(stream.handle())) {}

  simt::Stream get() { return stream_; }
  // Fills scratch memory with NaN where that is free: on the simulated device.
  void Poison(void* /*memory*/, int64_t /*bytes*/) {}
  void KeepErrors() {
    const std::string error = simt::TakeLaunchError();
    if (!error.empty()) context_.KeepError("a kernel", absl::InternalError(error));
  }

 private:
  DeviceContext& context_;
  const simt::Stream stream_;
};

}  // namespace tessera::cuda

#else
#include "compute/kernels/cuda/simulated_stream.h"
#endif

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_
