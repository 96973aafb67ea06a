#include "layout/elements/copy_elements.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

template <typename To, typename From>
To ConvertOne(DType from_dtype, DType to_dtype, From value) {
  To result;
  FindCopy(from_dtype, to_dtype)(reinterpret_cast<const std::byte*>(&value),
                                 reinterpret_cast<std::byte*>(&result), 1, 1);
  return result;
}

double Value(DType dtype, uint16_t bits) { return ConvertOne<double>(dtype, DType::kF64, bits); }

// The nearest value of a 16-bit dtype, found by trying all of them; ties go to the even encoding.
uint16_t NearestByTrial(DType dtype, double value, uint16_t largest_finite) {
  const double magnitude = std::fabs(value);
  uint16_t best = 0;
  for (uint32_t bits = 0; bits <= largest_finite; ++bits) {
    const double distance = std::fabs(Value(dtype, bits) - magnitude);
    const double best_distance = std::fabs(Value(dtype, best) - magnitude);
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) best = bits;
  }
  // Beyond the largest finite value by half a step or more: infinity.
  const double step = Value(dtype, largest_finite) - Value(dtype, largest_finite - 1);
  if (magnitude >= Value(dtype, largest_finite) + step / 2) best = largest_finite + 1;
  return best | (std::signbit(value) ? 0x8000 : 0);
}

TEST(CopyElementsTest, HalfPrecisionValuesAreWhatIeeeSays) {
  EXPECT_EQ(Value(DType::kF16, 0x3c00), 1.0);
  EXPECT_EQ(Value(DType::kF16, 0x0001), 0x1p-24);
  EXPECT_EQ(Value(DType::kF16, 0x03ff), 0x1p-14 - 0x1p-24);
  EXPECT_EQ(Value(DType::kF16, 0xfbff), -65504.0);
  EXPECT_EQ(Value(DType::kF16, 0x7c00), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(Value(DType::kF16, 0x7e00)));
  EXPECT_EQ(Value(DType::kBF16, 0x3f80), 1.0);
  EXPECT_EQ(Value(DType::kBF16, 0xc040), -3.0);
}

TEST(CopyElementsTest, Every16BitValueSurvivesTheWayThroughWiderTypes) {
  for (const DType narrow : {DType::kF16, DType::kBF16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float single = ConvertOne<float>(narrow, DType::kF32, static_cast<uint16_t>(bits));
      const double wide = ConvertOne<double>(narrow, DType::kF64, static_cast<uint16_t>(bits));
      const uint16_t from_single = ConvertOne<uint16_t>(DType::kF32, narrow, single);
      const uint16_t from_double = ConvertOne<uint16_t>(DType::kF64, narrow, wide);
      if (std::isnan(single)) {
        EXPECT_TRUE(std::isnan(Value(narrow, from_single)));
        EXPECT_TRUE(std::isnan(Value(narrow, from_double)));
        continue;
      }
      ASSERT_EQ(from_single, bits);
      ASSERT_EQ(from_double, bits);
    }
  }
}

TEST(CopyElementsTest, RoundsToNearestEvenOnce) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (const DType narrow : {DType::kF16, DType::kBF16}) {
    const uint16_t largest = narrow == DType::kF16 ? 0x7bff : 0x7f7f;
    for (int i = 0; i < 60; ++i) {
      const uint16_t bits = random() % largest;
      const double low = Value(narrow, bits), high = Value(narrow, bits + 1);
      const double middle = (low + high) / 2;
      const double above = std::nextafter(middle, high), below = std::nextafter(middle, low);
      for (const double value : {middle, above, below, -above, low + (high - low) * 0.3}) {
        ASSERT_EQ(ConvertOne<uint16_t>(DType::kF64, narrow, value),
                  NearestByTrial(narrow, value, largest))
            << value << " seed " << seed;
        const float single = static_cast<float>(value);
        ASSERT_EQ(ConvertOne<uint16_t>(DType::kF32, narrow, single),
                  NearestByTrial(narrow, single, largest))
            << single << " seed " << seed;
      }
    }
    for (const double value : {1e300, -1e300, 0.0, -0.0, 1e-300, -1e-300}) {
      EXPECT_EQ(ConvertOne<uint16_t>(DType::kF64, narrow, value),
                NearestByTrial(narrow, value, largest))
          << value;
    }
  }
}

TEST(CopyElementsTest, EqualTypesKeepTheirBitsAndOthersHaveNoConversion) {
  EXPECT_EQ(ConvertOne<uint32_t>(DType::kF32, DType::kF32, uint32_t{0x7f800001}),
            0x7f800001u);  // a signalling NaN
  EXPECT_EQ(FindCopy(DType::kI32, DType::kF32), nullptr);
  EXPECT_EQ(FindCopy(DType::kF32, DType::kI32), nullptr);
  EXPECT_EQ(FindCopy(DType::kF8E4M3, DType::kF32), nullptr);
  EXPECT_NE(FindCopy(DType::kF8E4M3, DType::kF8E4M3), nullptr);
  EXPECT_EQ(FindCopy(DType::kUnspecified, DType::kUnspecified), nullptr);
}

TEST(CopyElementsTest, LongCopiesWriteTheirBytesAndNoOther) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  std::vector<uint8_t> source(100000);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  for (int i = 0; i < 200; ++i) {
    // Every offset within a cache line, on both sides.
    const size_t from = random() % 64, to = 64 + random() % 64, size = random() % 70000;
    std::vector<uint8_t> expected(80000, 0xee), found = expected;
    std::copy_n(source.begin() + from, size, expected.begin() + to);
    FindCopy(DType::kU8, DType::kU8)(reinterpret_cast<const std::byte*>(source.data() + from),
                                     reinterpret_cast<std::byte*>(found.data() + to), size, 1);
    ASSERT_TRUE(found == expected) << "seed " << seed << ": " << size << " bytes to " << to;
  }
}

TEST(CopyElementsTest, ConvertsToElementsThatAreApart) {
  const std::vector<float> dense = {1, 2, 3};
  std::vector<float> sparse(7, 0);
  FindCopy(DType::kF32, DType::kF32)(reinterpret_cast<const std::byte*>(dense.data()),
                                     reinterpret_cast<std::byte*>(sparse.data()), 3, 3);
  EXPECT_EQ(sparse, (std::vector<float>{1, 0, 0, 2, 0, 0, 3}));
  std::vector<double> wide(6, 0);
  FindCopy(DType::kF32, DType::kF64)(reinterpret_cast<const std::byte*>(dense.data()),
                                     reinterpret_cast<std::byte*>(wide.data()), 3, 2);
  EXPECT_EQ(wide, (std::vector<double>{1, 0, 2, 0, 3, 0}));
}

}  // namespace
}  // namespace tessera
