#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMULATED_STREAM_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMULATED_STREAM_H_

// kernel_stream.h on the simulated device.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/device.h"
#include "compute/tensor/device_runtime.h"
#include "compute/tensor/fake_device_runtime.h"

namespace tessera::cuda {

// Kernels run when the fake device comes to them. Errors are kept then.
class KernelStream final : private simt::WorkQueue {
 public:
  explicit KernelStream(const Stream& stream)
      : context_(stream.context()),
        device_(dynamic_cast<FakeDeviceRuntime*>(&context_.runtime())),
        stream_(stream.handle()) {
    CHECK(device_ != nullptr) << "the simulated device needs a FakeDeviceRuntime";
  }

  simt::Stream get() { return this; }
  void Poison(void* memory, int64_t bytes) {
    device_->Enqueue(stream_, [=] { std::memset(memory, 0xff, static_cast<size_t>(bytes)); });
  }
  void KeepErrors() {}

 private:
  void Add(std::function<void()> work) override {
    device_->Enqueue(stream_, [work = std::move(work), &context = context_] {
      work();
      const std::string error = simt::TakeLaunchError();
      if (!error.empty()) context.KeepError("a kernel", absl::InternalError(error));
    });
  }

  int64_t max_shared_bytes() const override { return device_->shared_bytes_of_block(); }

  DeviceContext& context_;
  FakeDeviceRuntime* const device_;
  const DeviceRuntime::StreamHandle stream_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMULATED_STREAM_H_
