#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/vector_test.cc"
#include <gtest/gtest.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/checked_math.h"
#include "base/cpu_level.h"
#include "base/dispatch.h"
#include "base/for_each_target.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Computes sixteen numbers from x, and stores the results in y.
void ExpLanes(const float* x, float* y) { Store(Exp(Load(x)), y); }
void Exp2Lanes(const float* x, float* y) { Store(Exp2(Load(x)), y); }
void LogLanes(const float* x, float* y) { Store(Log(Load(x)), y); }
void SigmoidLanes(const float* x, float* y) { Store(Sigmoid(Load(x)), y); }
void SqrtLanes(const float* x, float* y) { Store(Sqrt(Load(x)), y); }
void ClampLanes(const float* x, float* y) { Store(Clamp(Load(x), -1, 2), y); }
void RoundLanes(const float* x, BFloat16* y) { Store(Load(x), y); }
void WidenLanes(const BFloat16* x, float* y) { Store(Load(x), y); }
float SumLanes(const float* x) { return ReduceSum(Load(x)); }
float MaxLanes(const float* x) { return ReduceMax(Load(x)); }

void MulAddLanes(const float* a, const float* b, const float* c, float* y) {
  Store(MulAdd(Load(a), Load(b), Load(c)), y);
  Store(MulSub(Load(a), Load(b), Load(c)), y + kLanes);
  Store(NegMulAdd(Load(a), Load(b), Load(c)), y + 2 * kLanes);
}

// Doubles the first `count` of x, and stores all sixteen that LoadPart returned in `loaded`.
void DoublePart(float* x, int64_t count, float* loaded) {
  const F32x16 part = LoadPart(x, count);
  Store(part, loaded);
  StorePart(part + part, x, count);
}

int64_t Target() { return HWY_TARGET; }

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Runs every test on each target that the processor has.
class VectorTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    SetUsableTargetsForTest(GetParam());
    ASSERT_EQ(TESSERA_CHOOSE(Target)(), GetParam());
  }
  void TearDown() override { SetUsableTargetsForTest(0); }

  using Function = void (*)(const float*, float*);

  static float At(Function function, float x) {
    float lanes[kLanes], results[kLanes];
    std::fill(lanes, lanes + kLanes, x);
    function(lanes, results);
    for (float result : results) {
      EXPECT_EQ(std::bit_cast<uint32_t>(result), std::bit_cast<uint32_t>(results[0])) << x;
    }
    return results[0];
  }

  // The largest |actual - expected| in units of the last place of the expected value, over
  // [begin, end).
  template <typename Expected>
  static double WorstUlps(Function function, double begin, double end, double step,
                          Expected expected) {
    double worst = 0;
    for (double at = begin; at < end;) {
      float lanes[kLanes], results[kLanes];
      for (float& lane : lanes) {
        lane = static_cast<float>(std::min(at, end));
        at += step;
      }
      function(lanes, results);
      for (int i = 0; i < kLanes; ++i) {
        const double exact = expected(static_cast<double>(lanes[i]));
        const float rounded = static_cast<float>(exact);
        const double ulp = std::nextafter(std::abs(rounded), kInfinity) - std::abs(rounded);
        worst = std::max(worst, std::abs(results[i] - exact) / ulp);
      }
    }
    return worst;
  }
};

TEST_P(VectorTest, ExpStaysWithinItsErrorBound) {
  const auto exp = TESSERA_CHOOSE(ExpLanes);
  EXPECT_LE(WorstUlps(exp, -87.3, 88.37, 0.00037, [](double x) { return std::exp(x); }), 1.5);
}

TEST_P(VectorTest, ExpOfSpecialValues) {
  const auto exp = TESSERA_CHOOSE(ExpLanes);
  EXPECT_EQ(At(exp, 0), 1);
  EXPECT_EQ(At(exp, -kInfinity), 0);
  EXPECT_EQ(At(exp, -1e30f), 0);
  EXPECT_EQ(At(exp, -87.4f), 0);
  EXPECT_EQ(At(exp, kInfinity), kInfinity);
  EXPECT_EQ(At(exp, 1e30f), kInfinity);
  EXPECT_EQ(At(exp, 88.4f), kInfinity);
  EXPECT_TRUE(std::isfinite(At(exp, 88.3f)));
  EXPECT_TRUE(std::isnan(At(exp, kNan)));
}

TEST_P(VectorTest, Exp2StaysWithinItsErrorBound) {
  const auto exp2 = TESSERA_CHOOSE(Exp2Lanes);
  EXPECT_LE(WorstUlps(exp2, -126, 127.49, 0.00053, [](double x) { return std::exp2(x); }), 1.5);
}

TEST_P(VectorTest, Exp2OfSpecialValues) {
  const auto exp2 = TESSERA_CHOOSE(Exp2Lanes);
  for (int n = -126; n < 128; ++n) EXPECT_EQ(At(exp2, static_cast<float>(n)), std::ldexp(1.0f, n));
  EXPECT_EQ(At(exp2, -kInfinity), 0);
  EXPECT_EQ(At(exp2, -1e30f), 0);
  EXPECT_EQ(At(exp2, -126.1f), 0);
  EXPECT_EQ(At(exp2, kInfinity), kInfinity);
  EXPECT_EQ(At(exp2, 1e30f), kInfinity);
  EXPECT_EQ(At(exp2, 128), kInfinity);
  EXPECT_TRUE(std::isnan(At(exp2, kNan)));
}

TEST_P(VectorTest, SigmoidStaysWithinItsErrorBound) {
  const auto sigmoid = TESSERA_CHOOSE(SigmoidLanes);
  const auto expected = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LE(WorstUlps(sigmoid, -86.9, 100, 0.0017, expected), 3);
  EXPECT_EQ(At(sigmoid, -1e30f), 0);
  EXPECT_EQ(At(sigmoid, 1e30f), 1);
  EXPECT_EQ(At(sigmoid, 0), 0.5f);
}

TEST_P(VectorTest, LogStaysWithinItsErrorBound) {
  const auto log = TESSERA_CHOOSE(LogLanes);
  const auto expected = [](double x) { return std::log(x); };
  EXPECT_LE(WorstUlps(log, 0.25, 1 - 1e-4, 1.7e-6, expected), 1.5);
  EXPECT_LE(WorstUlps(log, 1 + 1e-4, 4, 1.7e-6, expected), 1.5);
  for (int exponent = -126; exponent < 128; ++exponent) {
    const double first = std::ldexp(1.001, exponent), last = std::ldexp(1.999, exponent);
    EXPECT_LE(WorstUlps(log, first, last, (last - first) / 997, expected), 1.5) << exponent;
  }
  EXPECT_EQ(At(log, 1), 0);
  EXPECT_EQ(At(log, 0), -kInfinity);
  EXPECT_EQ(At(log, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(At(log, kNan)));
}

TEST_P(VectorTest, SqrtIsCorrectlyRounded) {
  const auto sqrt = TESSERA_CHOOSE(SqrtLanes);
  for (float x : {0.0f, 1e-40f, 2.0f, 9.0f, 1e30f, kInfinity}) EXPECT_EQ(At(sqrt, x), std::sqrt(x));
}

TEST_P(VectorTest, ClampKeepsNan) {
  const auto clamp = TESSERA_CHOOSE(ClampLanes);
  EXPECT_EQ(At(clamp, -kInfinity), -1);
  EXPECT_EQ(At(clamp, 0.5f), 0.5f);
  EXPECT_EQ(At(clamp, 7), 2);
  EXPECT_TRUE(std::isnan(At(clamp, kNan)));
}

// Rounded once, on targets without the instruction, too.
TEST_P(VectorTest, MultiplyAdds) {
  const auto run = TESSERA_CHOOSE(MulAddLanes);
  std::mt19937 generator(7);
  for (int round = 0; round < 2000; ++round) {
    float a[kLanes], b[kLanes], c[kLanes], results[3 * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      // Few significant bits, many exponents: sums that cancel, are near ties or subnormal.
      const auto number = [&] {
        const int bits = static_cast<int>(generator() % 24) + 1;
        const float digits = static_cast<float>(generator() >> (32 - bits)) + 1;
        return std::ldexp(generator() % 2 == 0 ? digits : -digits,
                          static_cast<int>(generator() % 60) - 90);
      };
      a[i] = number(), b[i] = std::ldexp(number(), 40), c[i] = number();
      if (round % 3 == 0) c[i] = -a[i] * b[i];
      if (round % 3 == 1) c[i] *= 0x1p-60f;
    }
    run(a, b, c, results);
    for (int i = 0; i < kLanes; ++i) {
      ASSERT_EQ(results[i], std::fma(a[i], b[i], c[i])) << a[i] << " " << b[i] << " " << c[i];
      ASSERT_EQ(results[kLanes + i], std::fma(a[i], b[i], -c[i]));
      ASSERT_EQ(results[2 * kLanes + i], std::fma(-a[i], b[i], c[i]));
    }
  }
}

// Every exponent, ties, subnormals, infinities and NaN.
TEST_P(VectorTest, RoundsToBFloat16AsTheScalarType) {
  const auto round = TESSERA_CHOOSE(RoundLanes);
  std::vector<uint32_t> words;
  for (uint32_t high = 0; high < 0x10000; high += 37) {
    for (uint32_t low : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      words.push_back(high << 16 | low);
    }
  }
  for (uint32_t special : {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fc00000u, 0xffffffffu,
                           0x7f7fffffu, 0x00000001u, 0x80000000u, 0x007fffffu}) {
    words.push_back(special);
  }
  words.resize(RoundUp(words.size(), kLanes));
  for (size_t first = 0; first < words.size(); first += kLanes) {
    float x[kLanes], widened[kLanes];
    BFloat16 rounded[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = std::bit_cast<float>(words[first + i]);
    round(x, rounded);
    TESSERA_CHOOSE(WidenLanes)(rounded, widened);
    for (int i = 0; i < kLanes; ++i) {
      ASSERT_EQ(rounded[i].bits, BFloat16(x[i]).bits) << std::hex << words[first + i];
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]), uint32_t{rounded[i].bits} << 16);
    }
  }
}

TEST_P(VectorTest, PartsTouchOnlyTheirLanes) {
  for (int count = 1; count < kLanes; ++count) {
    float data[kLanes + 1], loaded[kLanes];
    for (int i = 0; i <= kLanes; ++i) data[i] = static_cast<float>(i + 1);
    TESSERA_CHOOSE(DoublePart)(data, count, loaded);
    for (int i = 0; i < kLanes; ++i) EXPECT_EQ(loaded[i], i < count ? i + 1 : 0);
    for (int i = 0; i <= kLanes; ++i) EXPECT_EQ(data[i], i < count ? 2 * (i + 1) : i + 1);
  }
}

TEST_P(VectorTest, ReductionsHaveOneTree) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    float x[kLanes];
    for (float& lane : x) lane = normal(generator);
    EXPECT_EQ(TESSERA_CHOOSE(MaxLanes)(x), *std::max_element(x, x + kLanes));
    float sums[kLanes];
    std::copy(x, x + kLanes, sums);
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      for (int i = 0; i < distance; ++i) sums[i] += sums[i + distance];
    }
    EXPECT_EQ(TESSERA_CHOOSE(SumLanes)(x), sums[0]);
  }
}

// Where both are zeros or one is NaN, a maximum is the second operand.
TEST_P(VectorTest, MaximaOfZerosAndNanAreTheSecondOperand) {
  std::mt19937 generator(4);
  for (int round = 0; round < 100; ++round) {
    float x[kLanes], tree[kLanes];
    for (float& lane : x) lane = std::array{0.0f, -0.0f, kNan, -1.0f}[generator() % 4];
    std::copy(x, x + kLanes, tree);
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      for (int i = 0; i < distance; ++i) {
        tree[i] = tree[i] > tree[i + distance] ? tree[i] : tree[i + distance];
      }
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(TESSERA_CHOOSE(MaxLanes)(x)),
              std::bit_cast<uint32_t>(tree[0]));
  }
}

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets = TargetsUnderTest();
  if (std::find(targets.begin(), targets.end(), HWY_STATIC_TARGET) == targets.end()) {
    targets.push_back(HWY_STATIC_TARGET);
  }
  return targets;
}

#if HWY_ARCH_ARM_A64
// Also where the processor has SVE.
TEST(VectorTargetsTest, IsNeonAlone) {
  EXPECT_EQ(Targets(), std::vector<int64_t>{int64_t{HWY_NEON}});
}
#endif

INSTANTIATE_TEST_SUITE_P(Targets, VectorTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace tessera
#endif  // HWY_ONCE
