// The search for elements that a conversion makes infinite, compared with the conversion itself.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "layout/elements/copy_elements.h"

namespace tessera {
namespace {

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

double ValueOf(DType dtype, const std::byte* element) {
  double value;
  FindCopy(dtype, DType::kF64)(element, reinterpret_cast<std::byte*>(&value), 1, 1);
  return value;
}

bool BecomesInfinite(DType from, DType to, const std::byte* element) {
  std::byte result[8];
  FindCopy(from, to)(element, result, 1, 1);
  return std::isfinite(ValueOf(from, element)) && std::isinf(ValueOf(to, result));
}

// Expects what the conversion says about each element by itself.
void ExpectFound(DType from, DType to, const std::vector<std::byte>& elements) {
  const int64_t size = ElementSize(from);
  const auto count = static_cast<int64_t>(elements.size()) / size;
  int64_t expected = 0;
  while (expected < count && !BecomesInfinite(from, to, elements.data() + expected * size)) {
    ++expected;
  }
  const FindOverflow find = FindOverflowOf(from, to);
  if (find == nullptr) {
    EXPECT_EQ(expected, count) << DTypeName(from) << " to " << DTypeName(to);
    return;
  }
  ASSERT_EQ(find(elements.data(), count), expected == count ? -1 : expected)
      << DTypeName(from) << " to " << DTypeName(to) << ", "
      << (expected < count ? ValueOf(from, elements.data() + expected * size) : 0);
}

std::vector<std::byte> BytesOf(DType dtype, double value) {
  std::vector<std::byte> bytes(ElementSize(dtype));
  FindCopy(DType::kF64, dtype)(reinterpret_cast<const std::byte*>(&value), bytes.data(), 1, 1);
  return bytes;
}

TEST(OverflowTest, AgreesWithTheConversionAtTheEdgesOfEachRange) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      for (const double edge : {65504.0, 65520.0, 65536.0, 0x1.fep127, 0x1.ffp127, 0x1.fffffep127,
                                0x1.ffffffp127, std::numeric_limits<double>::max()}) {
        for (const double value : {edge, std::nextafter(edge, 0.0), edge * (1 - 0x1p-24),
                                   edge * (1 - 0x1p-8), edge * (1 + 0x1p-24), -edge}) {
          ExpectFound(from, to, BytesOf(from, value));
        }
      }
    }
  }
}

TEST(OverflowTest, AgreesWithTheConversionForAll16BitNumbers) {
  for (const DType from : {DType::kF16, DType::kBF16}) {
    for (const DType to : kFloats) {
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto element = static_cast<uint16_t>(bits);
        std::vector<std::byte> bytes(2);
        std::memcpy(bytes.data(), &element, 2);
        ExpectFound(from, to, bytes);
      }
    }
  }
}

// Elements that are infinite or NaN before the conversion do not count.
TEST(OverflowTest, FindsTheFirstOneBehindOthersThatAreNotFinite) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const size_t count = 1 + random() % 5000;
    std::vector<float> values(count, 1.5F);
    for (size_t k = random() % 4; k > 0; --k) values[random() % count] = INFINITY;
    for (size_t k = random() % 4; k > 0; --k) values[random() % count] = NAN;
    for (size_t k = random() % 3; k > 0; --k) values[random() % count] = -70000;
    std::vector<std::byte> bytes(count * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    SCOPED_TRACE(seed);
    ExpectFound(DType::kF32, DType::kF16, bytes);
  }
}

TEST(OverflowTest, ConversionsToTheSameOrAWiderRangeNeedNoSearch) {
  EXPECT_EQ(FindOverflowOf(DType::kF16, DType::kBF16), nullptr);
  EXPECT_EQ(FindOverflowOf(DType::kBF16, DType::kF32), nullptr);
  EXPECT_EQ(FindOverflowOf(DType::kF32, DType::kF64), nullptr);
  EXPECT_EQ(FindOverflowOf(DType::kF32, DType::kF32), nullptr);
  EXPECT_EQ(FindOverflowOf(DType::kI32, DType::kF16), nullptr);
  EXPECT_NE(FindOverflowOf(DType::kBF16, DType::kF16), nullptr);
}

}  // namespace
}  // namespace tessera
