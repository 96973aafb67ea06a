#include "compute/kernels/cuda/testing/simulated_backend.h"

#include <glog/logging.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/statusor.h"
#include "compute/kernels/cuda/cublaslt_api.h"
#include "compute/kernels/cuda/cublaslt_products.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/testing/fake_cublaslt.h"
#include "tensor/device.h"
#include "tensor/tensor.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera::cuda {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

// What the backend works on, and its products hold on to, so that it outlives the backend's memory.
struct OwnDevice {
  OwnDevice()
      : context(std::make_unique<FakeDeviceRuntime>(
            FakeDeviceOptions{.memory_bytes = std::numeric_limits<int64_t>::max(),
                              .fabric = FakeFabric::OverHostMemory(),
                              .at_once = true})),
        compute(OrDie(Stream::Create(context))),
        cublaslt(static_cast<FakeDeviceRuntime&>(context.runtime())) {}
  ~OwnDevice() {
    // The thread may have made another backend since.
    CHECK_EQ(context.runtime().Select(), absl::OkStatus());
    CHECK_EQ(compute.Synchronize(), absl::OkStatus());
  }

  DeviceContext context;
  Stream compute;
  FakeCublasLt cublaslt;
};

}  // namespace

std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options,
                                              DeviceNumerics numerics,
                                              const ProductChoices& choices) {
  simt::SetSimulatorOptions(options);
  const auto own = std::make_shared<OwnDevice>();
  return MakeDeviceBackend(
      {DeviceType::kCpu, 0}, own->compute,
      OrDie(MakeCublasLtProducts(std::shared_ptr<CublasLtApi>(own, &own->cublaslt), own->compute,
                                 {.workspace_bytes = 1 << 16, .choices = choices})),
      numerics, choices);
}

}  // namespace tessera::cuda
