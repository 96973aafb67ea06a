#include "compute/device/testing/simulated_device.h"

#include <glog/logging.h>

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "compute/device/kernel_reducer.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/cublaslt_products.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/products.h"
#include "tensor/device.h"
#include "tensor/device_tensors.h"
#include "tensor/host_copies.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

}  // namespace

std::unique_ptr<SimulatedDevice> OpenSimulatedDevice(int index, const FakeDeviceOptions& options,
                                                     DeviceNumerics numerics,
                                                     const cuda::FakeCublasLtOptions& cublaslt) {
  constexpr int64_t kSmall = 1 << 16;
  auto opened = std::make_unique<SimulatedDevice>();
  opened->device = {DeviceType::kCuda, index};
  opened->shared_bytes_of_block = options.shared_bytes_of_block;
  opened->multiplies_by_warpgroups = true;
  auto runtime = std::make_unique<FakeDeviceRuntime>(options);
  opened->runtime = runtime.get();
  opened->cublaslt = std::make_shared<cuda::FakeCublasLt>(*runtime, cublaslt);
  opened->context = std::make_unique<DeviceContext>(std::move(runtime));
  opened->compute = std::make_unique<Stream>(OrDie(Stream::Create(*opened->context)));
  opened->tensors = std::make_unique<DeviceTensors>(opened->device, *opened->compute);
  opened->copies = OrDie(HostCopies::Create(*opened->compute, {.slot_bytes = kSmall, .slots = 4}));
  opened->make_backend =
      [&device = *opened,
       numerics](const cuda::ProductChoices& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
    TESSERA_RETURN_IF_ERROR(CheckChoices(device, choices));
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<cuda::Products> products,
        cuda::MakeCublasLtProducts(device.cublaslt, *device.compute,
                                   {.workspace_bytes = kSmall, .choices = choices}));
    return cuda::MakeDeviceBackend(device.device, *device.compute, std::move(products), numerics,
                                   choices);
  };
  opened->backend = OrDie(opened->make_backend(opened->choices));
  opened->make_exact_backend = [&device = *opened] {
    return cuda::MakeDeviceBackend(device.device, *device.compute, /*products=*/nullptr,
                                   DeviceNumerics::kExact);
  };
  opened->reducer = MakeKernelReducer();
  return opened;
}

}  // namespace tessera
