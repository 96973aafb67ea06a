#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/tensor/bfloat16.h"

namespace tessera {
namespace {

// Every bf16, at any place of a row and in rows of any length.
TEST(WidenTest, WidensEveryNumber) {
  constexpr int64_t kNumbers = 65536;
  for (const int64_t columns : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{333}}) {
    const int64_t stride = columns + 5, rows = kNumbers / stride;
    std::vector<BFloat16> from(kNumbers);
    for (int64_t i = 0; i < kNumbers; ++i) from[i].bits = static_cast<uint16_t>(i);
    std::vector<float> to(rows * columns + 1, -5.0f);
    WidenRows(from.data(), stride, rows, columns, to.data());
    for (int64_t i = 0; i < rows * columns; ++i) {
      const BFloat16 x = from[i / columns * stride + i % columns];
      ASSERT_EQ(std::bit_cast<uint32_t>(to[i]), uint32_t{x.bits} << 16);
    }
    EXPECT_EQ(to.back(), -5.0f);
  }
}

TEST(WidenTest, RoundsAsBFloat16Does) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> numbers = {0.0f,
                                -0.0f,
                                infinity,
                                -infinity,
                                std::nanf(""),
                                -std::nanf("1"),
                                largest,
                                -largest,
                                1e-40f,
                                std::bit_cast<float>(0x7f800001u),
                                std::bit_cast<float>(0xffffffffu)};
  // Halfway between two neighbours, and adjacent to that.
  for (uint32_t high : {0x3f80u, 0x3f81u, 0xc2ffu, 0x7f7fu, 0x0001u}) {
    for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u}) {
      numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  while (numbers.size() % 13 != 0) numbers.push_back(static_cast<float>(numbers.size()) / 3);
  const int64_t count = static_cast<int64_t>(numbers.size());
  for (const int64_t columns : {int64_t{13}, count}) {
    const int64_t rows = count / columns, stride = columns + 3;
    std::vector<BFloat16> to(rows * stride);
    for (BFloat16& x : to) x.bits = 0x1234;
    RoundRows(numbers.data(), rows, columns, to.data(), stride);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < stride; ++i) {
        const uint16_t expected =
            i < columns ? BFloat16(numbers[row * columns + i]).bits : uint16_t{0x1234};
        EXPECT_EQ(to[row * stride + i].bits, expected) << numbers[row * columns + i];
      }
    }
  }
}

}  // namespace
}  // namespace tessera
