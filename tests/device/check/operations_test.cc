#include "tests/device/check/operations.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/match.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "gmock/gmock.h"
#include "tensor/tensor.h"
#include "tests/device/check/device_checks.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(OperationsTest, EveryOperationOfASimulatedDeviceIsRight) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0, {.seed = 7});
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

// Whether accesses to an operand are seen, and few. In place and without a bias, AddBias does
// nothing; and aligned rows are copied 16 bytes at a time, by memcpy, which reports no access.
bool IsSeen(const OperationCase& one, const CaseOperand& operand) {
  const bool is_copied = operand.name == "in place" || operand.name == "without bias";
  return operand.value.view().elements() < 4000 && !(is_copied && one.name.find("AddBias") == 0);
}

// What is not in the device's memory is refused by each operation that touches it, by name. Results
// that are numbers (fp64) are the host's.
TEST(OperationsTest, HostMemoryIsRefusedAsAnyOperand) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0, {.seed = 7});
  RandomTensors random(5);
  int refused = 0;
  for (const OperationCase& one : OperationCases(DType::kF32, random)) {
    for (const CaseOperand& on_host : one.operands) {
      if (on_host.value.view().dtype() == DType::kF64 || !IsSeen(one, on_host)) continue;
      std::vector<Tensor> memory;
      for (const CaseOperand& operand : one.operands) {
        const TensorView& value = operand.value;
        const bool stays = &operand == &on_host || value.dtype() == DType::kF64;
        memory.emplace_back(value.dtype(), value.shape(), stays ? Device() : device->device);
        if (!stays) device->backend->Upload(value.data(), memory.back());
      }
      const std::vector<TensorView> views(memory.begin(), memory.end());
      one.run(*device->backend, CaseViews(one.operands, views), /*first_row=*/0);
      const std::string error(device->backend->Synchronize().message());
      const bool is_named = absl::StrContains(error, "memory that is not the device's");
      EXPECT_TRUE(is_named) << one.name << " with " << on_host.name << " on the host: " << error;
      refused += is_named;
    }
  }
  EXPECT_GE(refused, 100);
}

TEST(OperationsTest, TheMessageOfARefusalNamesKernelAndOperand) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0);
  const Tensor x(DType::kF32, {3, 5}), out(DType::kF32, {3, 5}, device->device);
  device->backend->GeluForward({x, out});
  const std::string error(device->backend->Synchronize().message());
  EXPECT_THAT(error, HasSubstr("reads memory that is not the device's (4 bytes of global memory"));
  EXPECT_THAT(error, HasSubstr("; operand 1 in GeluForward of [3,5], [3,5]"));
}

}  // namespace
}  // namespace tessera::testing
