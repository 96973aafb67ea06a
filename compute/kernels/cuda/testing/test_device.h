#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "compute/kernels/cuda/cublaslt_products.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/testing/fake_cublaslt.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera::cuda {

// A fake device, cuBLASLt and a backend on one stream, over host tensors.
struct TestDevice {
  explicit TestDevice(uint64_t seed = 0, const FakeCublasLtOptions& options = {},
                      const ProductChoices& choices = {})
      : TestDevice(FakeDeviceOptions{.seed = seed}, options, choices) {}
  explicit TestDevice(FakeDeviceOptions device, const FakeCublasLtOptions& options = {},
                      const ProductChoices& choices = {}) {
    device.fabric = FakeFabric::OverHostMemory();
    auto owned = std::make_unique<FakeDeviceRuntime>(device);
    runtime = owned.get();
    context = std::make_unique<DeviceContext>(std::move(owned));
    compute = std::make_unique<Stream>(*Stream::Create(*context));
    cublaslt = std::make_shared<FakeCublasLt>(*runtime, options);
    backend = MakeDeviceBackend(
        {DeviceType::kCpu, 0}, *compute,
        *MakeCublasLtProducts(cublaslt, *compute, {.workspace_bytes = 1 << 12, .choices = choices}),
        DeviceNumerics::kFast, choices);
  }
  FakeDeviceRuntime* runtime;
  std::unique_ptr<DeviceContext> context;
  std::unique_ptr<Stream> compute;
  std::shared_ptr<FakeCublasLt> cublaslt;
  std::unique_ptr<Backend> backend;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_TEST_DEVICE_H_
