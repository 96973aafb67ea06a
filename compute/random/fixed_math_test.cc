#include "compute/random/fixed_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "compute/random/philox.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

uint64_t Fold(uint64_t hash, double x) { return MixCoordinates(hash, std::bit_cast<uint64_t>(x)); }

TEST(FixedMathTest, AgreesWithTheLibraryAndHasTheSameBitsEverywhere) {
  const RandomStream stream = {.seed = 3};
  uint64_t hash = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const double u = static_cast<double>(RandomWord(stream, i)) * 0x1p-32;
    const double x = (u - 0.5) * 200;
    const double positive = std::ldexp(u + 0x1p-40, static_cast<int>(i % 80) - 40);
    const double angle = i % 2 == 0 ? u * 7 : u * 1e6;
    EXPECT_NEAR(FixedExp(x) / std::exp(x), 1, 1e-15) << x;
    EXPECT_NEAR(FixedExp2(x) / std::exp2(x), 1, 1e-15) << x;
    EXPECT_NEAR(FixedLog(positive), std::log(positive), 4e-16 * std::abs(std::log(positive)))
        << positive;
    EXPECT_NEAR(FixedPow(positive, 0.75) / std::pow(positive, 0.75), 1, 1e-14) << positive;
    EXPECT_NEAR(FixedCos(angle), std::cos(angle), 4e-16) << angle;
    EXPECT_NEAR(FixedSin(angle), std::sin(angle), 4e-16) << angle;
    hash = Fold(Fold(Fold(hash, FixedExp(x)), FixedExp2(x)), FixedLog(positive));
    hash = Fold(Fold(hash, FixedCos(angle)), FixedSin(angle));
  }
  EXPECT_EQ(hash, 0x4d9ded6bda112c22);
}

TEST(FixedMathTest, IsExactWhereSchedulesEnd) {
  EXPECT_EQ(FixedExp(0), 1);
  EXPECT_EQ(FixedExp2(-1), 0.5);
  EXPECT_EQ(FixedExp2(-0.0), 1);
  EXPECT_EQ(FixedLog(1), 0);
  EXPECT_EQ(FixedCos(0), 1);
  EXPECT_EQ(FixedCos(3.141592653589793), -1);
  EXPECT_EQ(FixedExp(-1000), 0);
}

}  // namespace
}  // namespace tessera
