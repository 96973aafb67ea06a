#include "trainer/step/product_rate.h"

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "gtest/gtest.h"
#include "models/testing/profiling_backend.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

std::string Cube(int64_t side) {
  return absl::StrCat("MatMul ", side, " x ", side, " x ", side, " AB'");
}

TEST(ProductRateTest, LargerProductsAreMeasuredUntilOneTakesLong) {
  const auto cpu = MakeCpuBackend(1);
  testing::ProfilingBackend backend(*cpu);
  const double rate = MeasureProductRate(backend, DType::kF32).value();
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e15);
  const auto measured = backend.Take();
  for (const int64_t side : {256, 512}) {
    ASSERT_TRUE(measured.contains(Cube(side))) << side;
    EXPECT_GE(measured.at(Cube(side)).calls, 2) << side;
  }
}

// Operands are random in all their rows: no two products of rows are alike.
class OperandBackend : public testing::ProfilingBackend {
 public:
  using ProfilingBackend::ProfilingBackend;
  std::set<float> values;

 protected:
  using ProfilingBackend::Run;
  void Run(const ops::MatMul& op) override {
    const float* const a = op.a.as<float>();
    values.insert(a, a + op.a.dim(1));
    const float* const last = a + (op.a.dim(0) - 1) * op.a.stride(0);
    values.insert(last, last + op.a.dim(1));
    ProfilingBackend::Run(op);
  }
};

TEST(ProductRateTest, OperandsAreRandom) {
  const auto cpu = MakeCpuBackend(1);
  OperandBackend backend(*cpu);
  EXPECT_GT(MeasureProductRate(backend, DType::kF32).value(), 0);
  EXPECT_GT(backend.values.size(), 1000u);
}

// Simulates an emulated processor.
TEST(ProductRateTest, ProductsThatWouldTakeLongAreLeftOut) {
  const auto naive = MakeReferenceBackend();
  testing::ProfilingBackend backend(*naive);
  EXPECT_GT(MeasureProductRate(backend, DType::kF32).value(), 0);
  EXPECT_FALSE(backend.Take().contains(Cube(4096)));
}

}  // namespace
}  // namespace tessera
