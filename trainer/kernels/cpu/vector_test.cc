#include "trainer/kernels/cpu/vector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {
namespace {

// |actual - expected| in units of the last place of the expected value.
double UlpError(float actual, double expected) {
  const float rounded = static_cast<float>(expected);
  const double ulp =
      std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity()) - std::abs(rounded);
  return std::abs(actual - expected) / ulp;
}

float ExpOf(float x) { return Exp(Splat(x))[0]; }

TEST(ExpTest, StaysWithinItsErrorBound) {
  double worst = 0;
  for (double x = -87.3; x < 88.7; x += 0.00037) {
    const float argument = static_cast<float>(x);
    worst = std::max(worst, UlpError(ExpOf(argument), std::exp(static_cast<double>(argument))));
  }
  EXPECT_LE(worst, 1.5);
  RecordProperty("worst_ulp_times_1000", static_cast<int>(worst * 1000));
}

TEST(ExpTest, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExpOf(0), 1);
  EXPECT_EQ(ExpOf(-infinity), 0);
  EXPECT_EQ(ExpOf(-1e30f), 0);
  EXPECT_EQ(ExpOf(-90), 0);
  EXPECT_EQ(ExpOf(infinity), infinity);
  EXPECT_EQ(ExpOf(89), infinity);
  EXPECT_TRUE(std::isfinite(ExpOf(88.7f)));
  EXPECT_TRUE(std::isnan(ExpOf(std::numeric_limits<float>::quiet_NaN())));
}

float Exp2Of(float x) { return Exp2(Splat(x))[0]; }

TEST(Exp2Test, StaysWithinItsErrorBound) {
  double worst = 0;
  for (double x = -126; x < 128; x += 0.00053) {
    const float argument = static_cast<float>(x);
    worst = std::max(worst, UlpError(Exp2Of(argument), std::exp2(static_cast<double>(argument))));
  }
  EXPECT_LE(worst, 1.5);
  RecordProperty("worst_ulp_times_1000", static_cast<int>(worst * 1000));
}

TEST(Exp2Test, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int n = -126; n < 128; ++n) {
    EXPECT_EQ(Exp2Of(static_cast<float>(n)), std::ldexp(1.0f, n));
  }
  EXPECT_EQ(Exp2Of(-infinity), 0);
  EXPECT_EQ(Exp2Of(-1e30f), 0);
  EXPECT_EQ(Exp2Of(-126.5f), 0);
  EXPECT_EQ(Exp2Of(infinity), infinity);
  EXPECT_EQ(Exp2Of(1e30f), infinity);
  EXPECT_EQ(Exp2Of(128), infinity);
  EXPECT_TRUE(std::isnan(Exp2Of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SigmoidTest, StaysWithinItsErrorBound) {
  double worst = 0;
  for (double x = -86.9; x < 100; x += 0.0017) {
    const float argument = static_cast<float>(x);
    const double expected = 1 / (1 + std::exp(-static_cast<double>(argument)));
    worst = std::max(worst, UlpError(Sigmoid(Splat(argument))[0], expected));
  }
  EXPECT_LE(worst, 3);
  EXPECT_EQ(Sigmoid(Splat(-1e30f))[0], 0);
  EXPECT_EQ(Sigmoid(Splat(1e30f))[0], 1);
  EXPECT_EQ(Sigmoid(Splat(0))[0], 0.5f);
}

TEST(VectorTest, PartsTouchOnlyTheirLanes) {
  for (int count = 1; count < kLanes; ++count) {
    float data[kLanes + 1];
    for (int i = 0; i <= kLanes; ++i) data[i] = static_cast<float>(i + 1);
    const F32x16 x = LoadPart(data, count);
    for (int i = 0; i < kLanes; ++i) EXPECT_EQ(x[i], i < count ? i + 1 : 0);
    StorePart(Splat(-1), data, count);
    for (int i = 0; i <= kLanes; ++i) EXPECT_EQ(data[i], i < count ? -1 : i + 1);
  }
}

TEST(VectorTest, Reductions) {
  F32x16 x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(i == 11 ? 100 : i);
  EXPECT_EQ(ReduceMax(x), 100);
  EXPECT_EQ(ReduceSum(x), 120 - 11 + 100);
  EXPECT_EQ(Sqrt(Splat(9))[3], 3);
}

}  // namespace
}  // namespace tessera
