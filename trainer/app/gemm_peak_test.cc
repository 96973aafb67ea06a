#include "trainer/app/gemm_peak.h"

#include <string>
#include <vector>

#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "models/testing/profiling_backend.h"

namespace tessera {
namespace {

TEST(GemmPeakTest, TheModelsProductsAreAmongThoseMeasured) {
  const auto cpu = MakeCpuBackend(1);
  testing::ProfilingBackend backend(*cpu);
  const std::vector<ProductSize> model = {{64, 48, 32}, {16, 10000, 8}};
  EXPECT_GT(MeasureGemmPeak(backend, DType::kF32, model).value(), 0);
  const auto measured = backend.Take();
  for (const std::string name :
       {"MatMul 64 x 32 x 48 AB'", "MatMul 256 x 256 x 256 AB'", "MatMul 16 x 8 x 4096 AB'"}) {
    ASSERT_TRUE(measured.contains(name)) << name;
    EXPECT_GE(measured.at(name).calls, 2) << name;
  }
}

// Simulates an emulated processor.
TEST(GemmPeakTest, ProductsThatWouldTakeLongAreLeftOut) {
  const auto naive = MakeReferenceBackend();
  testing::ProfilingBackend backend(*naive);
  const std::vector<ProductSize> model = {{4096, 4096, 4096}};
  EXPECT_GT(MeasureGemmPeak(backend, DType::kF32, model).value(), 0);
  EXPECT_FALSE(backend.Take().contains("MatMul 4096 x 4096 x 4096 AB'"));
}

}  // namespace
}  // namespace tessera
