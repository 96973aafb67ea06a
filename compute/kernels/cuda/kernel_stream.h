#ifndef TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/device.h"
#ifndef __CUDACC__
#include "tensor/testing/fake_device_runtime.h"
#endif

namespace tessera::cuda {

// Lets kernels be queued on a Stream of device.h: simt::Launch() takes KernelStream(stream).get().
// KeepErrors() hands errors of launches to the stream's context.
#ifdef __CUDACC__

class KernelStream {
 public:
  explicit KernelStream(const Stream& stream) : stream_(stream) {}

  simt::Stream get() { return static_cast<simt::Stream>(stream_.handle()); }
  // Fills scratch memory with NaN on the simulated device; does nothing on a GPU.
  void Poison(void* /*memory*/, int64_t /*bytes*/) {}
  void KeepErrors() {
    const std::string error = simt::TakeLaunchError();
    if (!error.empty()) stream_.context().KeepError("a kernel", absl::InternalError(error));
  }

 private:
  const Stream& stream_;
};

#else

// The KernelStream of the simulated device, which needs a FakeDeviceRuntime behind the stream.
// Kernels run when the fake device comes to them, and their errors are kept then.
class KernelStream final : private simt::WorkQueue {
 public:
  explicit KernelStream(const Stream& stream)
      : stream_(stream), device_(dynamic_cast<FakeDeviceRuntime&>(stream.context().runtime())) {}

  simt::Stream get() { return this; }
  void Poison(void* memory, int64_t bytes) {
    device_.Enqueue(stream_.handle(),
                    [=] { std::memset(memory, 0xff, static_cast<size_t>(bytes)); });
  }
  void KeepErrors() {}

 private:
  void Add(std::function<void()> work) override {
    device_.CountKernel();
    device_.Enqueue(stream_.handle(), [work = std::move(work), &context = stream_.context()] {
      work();
      const std::string error = simt::TakeLaunchError();
      if (!error.empty()) context.KeepError("a kernel", absl::InternalError(error));
    });
  }

  int64_t max_shared_bytes() const override { return device_.shared_bytes_of_block(); }
  simt::GlobalAccess::FindMemory find_memory() const override {
    return [&device = device_](const void* address) -> simt::Extent {
      const FakeDeviceRuntime::Piece piece = device.MemoryAt(address);
      return {piece.begin, piece.end};
    };
  }

  const Stream& stream_;
  FakeDeviceRuntime& device_;
};

#endif

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_KERNEL_STREAM_H_
