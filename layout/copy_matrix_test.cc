#include "layout/copy_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/test_seed.h"

namespace tessera::ckpt {
namespace {

struct Side {
  int64_t a_stride, b_stride;  // in bytes
  std::vector<std::byte> bytes;
};

// Memory of an a x b matrix that is contiguous along one of its dims, or along none, with padding.
Side RandomSide(int64_t a, int64_t b, int64_t size, std::mt19937_64& random) {
  const int64_t step = size * (random() % 4 == 0 ? 2 : 1);
  const auto padding = static_cast<int64_t>(random() % 3) * size;
  Side side;
  if (random() % 2 == 0) {
    side.b_stride = step;
    side.a_stride = b * step + padding;
  } else {
    side.a_stride = step;
    side.b_stride = a * step + padding;
  }
  side.bytes.resize(static_cast<size_t>(a * side.a_stride + b * side.b_stride));
  for (std::byte& byte : side.bytes) byte = static_cast<std::byte>(random());
  return side;
}

TEST(CopyMatrixTest, CopiesEveryElementAndNothingElse) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    const int64_t size = int64_t{1} << random() % 4;
    const auto a = static_cast<int64_t>(random() % 80), b = static_cast<int64_t>(random() % 80);
    const Side from = RandomSide(a, b, size, random);
    Side to = RandomSide(a, b, size, random);
    std::vector<std::byte> expected = to.bytes;
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t j = 0; j < b; ++j) {
        std::copy_n(from.bytes.begin() + i * from.a_stride + j * from.b_stride, size,
                    expected.begin() + i * to.a_stride + j * to.b_stride);
      }
    }
    CopyMatrix({a, from.a_stride, to.a_stride}, {b, from.b_stride, to.b_stride},
               static_cast<size_t>(size), from.bytes.data(), to.bytes.data());
    ASSERT_EQ(to.bytes, expected) << a << " x " << b << " elements of " << size << " bytes";
  }
}

}  // namespace
}  // namespace tessera::ckpt
