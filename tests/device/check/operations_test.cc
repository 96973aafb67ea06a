#include "tests/device/check/operations.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"
#include "tensor/testing/fake_device_runtime.h"
#include "tensor/testing/guarded_memory.h"
#include "tests/device/check/device_checks.h"

namespace tessera::testing {
namespace {

// On memory that the host cannot touch, with work that runs late.
std::unique_ptr<SimulatedDevice> OpenGuardedDevice() {
  const auto fabric = std::make_shared<FakeFabric>();
  fabric->guarded = std::make_unique<GuardedMemory>(size_t{1} << 30);
  return OpenSimulatedDevice(0, {.seed = 7, .fabric = fabric});
}

TEST(OperationsTest, EveryOperationOfASimulatedDeviceIsRight) {
  const std::unique_ptr<SimulatedDevice> device = OpenGuardedDevice();
  const std::unique_ptr<Backend> on_host = MakeHostOperandBackend(*device);
  const std::vector<OperationResult> results =
      CompareOperations(*on_host, *MakeCpuBackend(1), {.odd = true});
  EXPECT_GE(results.size(), 30);
  for (const OperationResult& result : results) {
    EXPECT_TRUE(result.passed()) << result.name << " in " << DTypeName(result.dtype) << ": "
                                 << result.worst << " in " << result.worst_tensor << " "
                                 << result.error;
    EXPECT_GT(result.tensors, 0) << result.name;
  }
}

}  // namespace
}  // namespace tessera::testing
