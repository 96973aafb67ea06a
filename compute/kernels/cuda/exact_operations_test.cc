// EXACT numerics on the simulated device: every operation has the bits of processors in fp32.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/testing/simulated_backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using testing::CaseOperand;
using testing::CaseViews;
using testing::OperationCase;
constexpr DType kF32 = DType::kF32;

class ExactOperationsTest : public ::testing::Test {
 protected:
  // Returns the names of the outputs whose bits are not the CPU's.
  std::vector<std::string> OtherBits(const OperationCase& one, Backend& device) {
    const std::vector<Tensor> expected = RunCase(one, *cpu_), actual = RunCase(one, device);
    EXPECT_EQ(device.Synchronize(), absl::OkStatus()) << one.name;
    std::vector<std::string> names;
    for (size_t i = 0; i < expected.size(); ++i) {
      const TensorView a = actual[i], b = expected[i];
      if (std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) != 0) {
        names.push_back(absl::StrCat(one.operands[i].name, " of ", one.name));
      }
    }
    return names;
  }
  void ExpectSameBits(const OperationCase& one) {
    EXPECT_EQ(OtherBits(one, *device_), std::vector<std::string>());
  }

  testing::RandomTensors random_{20261129};
  std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1, /*exact=*/true);
  std::unique_ptr<Backend> device_ = MakeSimulatedBackend({}, DeviceNumerics::kExact);
};

TEST_F(ExactOperationsTest, EveryOperationHasTheBitsOfProcessors) {
  for (const OperationCase& one : OperationCases(kF32, random_)) ExpectSameBits(one);
}

// The table of docs/exact.md: what has these bits without kernels of its own.
TEST_F(ExactOperationsTest, OtherOperationsHaveTheseBitsInFastNumerics) {
  const std::unique_ptr<Backend> fast = MakeSimulatedBackend({}, DeviceNumerics::kExactProducts);
  std::set<std::string> others;
  for (const OperationCase& one : OperationCases(kF32, random_)) {
    if (!OtherBits(one, *fast).empty()) others.insert(one.name.substr(0, one.name.find(" [")));
  }
  EXPECT_EQ(others, std::set<std::string>());
}

}  // namespace
}  // namespace tessera::cuda
