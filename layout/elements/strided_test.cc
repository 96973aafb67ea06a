#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/elements/copy_elements.h"

namespace tessera {
namespace {

// Strides of dims that follow each other in memory in a random order, with or without gaps, and the
// number of elements that they span.
std::vector<int64_t> RandomStrides(const std::vector<int64_t>& extents, int64_t& elements,
                                   std::mt19937_64& random) {
  std::vector<size_t> order(extents.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (random() % 3 != 0) std::shuffle(order.begin(), order.end(), random);
  const bool gaps = random() % 2 == 0;
  std::vector<int64_t> strides(extents.size());
  elements = gaps ? 1 + static_cast<int64_t>(random() % 2) : 1;
  for (const size_t d : order) {
    strides[d] = elements;
    elements *= extents[d] + (gaps ? static_cast<int64_t>(random() % 2) : 0);
  }
  elements = std::max<int64_t>(elements, 1);
  return strides;
}

// Copies one element at a time.
void CopyByElement(std::span<const StridedDim> dims, int64_t size, const std::byte* from,
                   std::byte* to) {
  if (dims.empty()) {
    std::copy_n(from, size, to);
    return;
  }
  for (int64_t i = 0; i < dims[0].extent; ++i) {
    CopyByElement(dims.subspan(1), size, from + i * dims[0].from_stride * size,
                  to + i * dims[0].to_stride * size);
  }
}

// Two dims are as long as some of the blocks that are copied at a time, and no multiples of them.
TEST(StridedTest, CopiesEveryElementOfTheRegionAndNothingElse) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const int64_t size = int64_t{1} << random() % 4;
    std::vector<int64_t> extents(random() % 5);
    for (int64_t& extent : extents) {
      extent = static_cast<int64_t>(random() % (extents.size() <= 2 ? 140 : 7));
    }
    int64_t from_elements = 0, to_elements = 0;
    const std::vector<int64_t> from_strides = RandomStrides(extents, from_elements, random);
    const std::vector<int64_t> to_strides = RandomStrides(extents, to_elements, random);
    std::vector<StridedDim> dims;
    for (size_t d = 0; d < extents.size(); ++d) {
      dims.push_back({extents[d], from_strides[d], to_strides[d]});
    }
    // Neither side is aligned.
    const std::vector<std::byte> from = RandomBytes(from_elements * size + 1, random);
    std::vector<std::byte> to = RandomBytes(to_elements * size + 1, random), expected = to;
    CopyByElement(dims, size, from.data() + 1, expected.data() + 1);
    CopyStrided(dims, static_cast<size_t>(size), from.data() + 1, to.data() + 1);
    ASSERT_EQ(to, expected) << "round " << round << ", seed " << seed;
  }
}

TEST(StridedTest, DimsThatAreOneOnBothSidesAreMerged) {
  const std::vector<StridedDim> dims = {{2, 60, 80}, {3, 20, 20}, {1, 7, 9}, {4, 5, 5}, {5, 1, 1}};
  const std::vector<StridedDim> merged = MergeDims(dims);
  ASSERT_EQ(merged.size(), 2);
  EXPECT_EQ(merged[0].extent, 2);
  EXPECT_EQ(merged[1].extent, 60);
  EXPECT_EQ(merged[1].to_stride, 1);
}

}  // namespace
}  // namespace tessera
