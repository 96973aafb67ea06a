#include "tests/device/check/operations.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"
#include "tests/device/check/device_checks.h"

namespace tessera::testing {
namespace {

TEST(OperationsTest, EveryOperationOfASimulatedDeviceIsRight) {
  const std::unique_ptr<SimulatedDevice> device =
      OpenSimulatedDevice(0, {.seed = 7, .fabric = MakeGuardedFabric()});
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
