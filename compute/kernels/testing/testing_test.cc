#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/gradient_check.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::testing {
namespace {

Tensor Filled(std::initializer_list<double> values) {
  Tensor tensor(DType::kF64, {static_cast<int64_t>(values.size())});
  double* out = tensor.view().as<double>();
  for (double value : values) *out++ = value;
  return tensor;
}

TEST(CompareTest, CountsElementsOutsideTheTolerance) {
  const Tensor expected = Filled({1, 10, 100, 0});
  const Tensor actual = Filled({1.05, 10.05, 100.05, 0.05});
  EXPECT_EQ(Compare(actual, expected, {.absolute = 0.06}).wrong_elements, 0);
  EXPECT_EQ(Compare(actual, expected, {.relative = 0.01}).wrong_elements, 2);
  EXPECT_EQ(Compare(actual, expected, {.of_maximum = 0.001}).wrong_elements, 0);
  const Difference difference = Compare(actual, expected, {.relative = 0.01});
  EXPECT_NEAR(difference.max_absolute, 0.05, 1e-12);
  EXPECT_NEAR(difference.max_relative, 0.05, 1e-12);
  EXPECT_EQ(difference.worst_element, 3);
}

TEST(CompareTest, NoToleranceForgivesNanOrInfinity) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor special = Filled({nan, inf, -inf});
  EXPECT_EQ(Compare(special, special, {}).wrong_elements, 0);
  const Tensor finite = Filled({1, 1, 1});
  EXPECT_EQ(Compare(finite, special, {.relative = 1e9, .absolute = 1e9}).wrong_elements, 3);
  EXPECT_EQ(Compare(special, finite, {.relative = 1e9, .absolute = 1e9}).wrong_elements, 3);
  EXPECT_EQ(Compare(Filled({0, -inf, inf}), special, {.absolute = 1e9}).wrong_elements, 3);
}

TEST(CompareTest, FailuresNameTheWorstElementAndTheTensor) {
  const Tensor expected(DType::kF32, {2, 3}), actual(DType::kF32, {2, 3});
  actual.view().as<float>()[4] = 0.5f;
  EXPECT_NONFATAL_FAILURE(ExpectClose(actual, expected, {.absolute = 0.1}, "d_x"),
                          "d_x [2,3]: 1 of 6 elements differ too much. Worst: [1,1] is 0.5");
  EXPECT_NONFATAL_FAILURE(ExpectBitwiseEqual(actual, expected),
                          "1 of 6 elements differ in their bits. First: [1,1] is 0x3f000000");
  const Tensor shorter(DType::kF32, {3});
  EXPECT_NONFATAL_FAILURE(ExpectClose(shorter, expected, {}), "shape [3], expected [2,3]");
  const Tensor wider(DType::kF64, {2, 3});
  EXPECT_NONFATAL_FAILURE(ExpectBitwiseEqual(wider, expected), "dtype float64, expected float32");
  ExpectClose(wider, expected, {});
}

TEST(CompareTest, BitwiseTellsTheSignOfZeroAndAcceptsNan) {
  EXPECT_NONFATAL_FAILURE(ExpectBitwiseEqual(Filled({-0.0}), Filled({0.0})), "1 of 1 elements");
  ExpectBitwiseEqual(Filled({std::nan("")}), Filled({std::nan("")}));
}

TEST(CompareTest, StridedViewsAreReadByIndex) {
  const Tensor x = RandomTensors(7).Normal(DType::kF32, {3, 4});
  const TensorView transposed = x.view().Transpose(0, 1);
  const Tensor copy = Cloned(transposed);
  EXPECT_EQ(copy.view().shape(), (Shape{4, 3}));
  ExpectBitwiseEqual(copy, transposed);
  EXPECT_EQ(At(transposed, {3, 1}), At(x, {1, 3}));
}

TEST(RandomTensorsTest, SameSeedSameNumbersAndRightMoments) {
  RandomTensors first(11), second(11);
  const Tensor x = first.Normal(DType::kF32, {10000}, 2, 3);
  ExpectBitwiseEqual(second.Normal(DType::kF32, {10000}, 2, 3), x);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 10000; ++i) sum += At(x, {i}), squares += At(x, {i}) * At(x, {i});
  EXPECT_NEAR(sum / 10000, 2, 0.2);
  EXPECT_NEAR(squares / 10000, 4 + 9, 1);
  const Tensor ids = first.Ids({1000}, -1, 3);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(At(ids, {i}), -1);
    EXPECT_LT(At(ids, {i}), 3);
  }
}

TEST(GradientCheckTest, AcceptsTheGradientAndRejectsASlightlyWrongOne) {
  const Tensor x = Filled({0.5, -1.5, 2});
  const Tensor before = Cloned(x);
  const auto loss = [&] {
    double sum = 0;
    for (int64_t i = 0; i < 3; ++i) sum += std::exp(At(x, {i}));
    return sum;
  };
  const Tensor right = Filled({std::exp(0.5), std::exp(-1.5), std::exp(2.0)});
  ExpectGradient(loss, x, right, "x");
  ExpectBitwiseEqual(x, before);
  const Tensor wrong = Filled({std::exp(0.5), std::exp(-1.5) + 1e-6, std::exp(2.0)});
  EXPECT_NONFATAL_FAILURE(ExpectGradient(loss, x, wrong, "x"), "gradient of x");
}

}  // namespace
}  // namespace tessera::testing
