#ifndef TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICE_H_
#define TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICE_H_

#include <memory>

#include "compute/device/training_device.h"
#include "compute/kernels/cuda/testing/fake_cublaslt.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {

// A GPU without a GPU: the kernels of kernels/cuda on the simulated device, matrix products by a
// fake cuBLASLt, on streams that run late and in adversarial order. FakeNccl takes `runtime`.
struct SimulatedDevice : TrainingDevice {
  FakeDeviceRuntime* runtime = nullptr;
  std::shared_ptr<cuda::FakeCublasLt> cublaslt;
};

// Opens a simulated device. No other device of the process may have the same `index`; ranks that
// are threads pass their rank. Launches are checked, and Backend::Synchronize() reports their
// errors.
std::unique_ptr<SimulatedDevice> OpenSimulatedDevice(
    int index, const FakeDeviceOptions& options = {},
    DeviceNumerics numerics = DeviceNumerics::kFast,
    const cuda::FakeCublasLtOptions& cublaslt = {});

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICE_H_
