#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layout/box.h"

namespace tessera {
namespace {

// Flat indices, inside `local`, of a box's elements in row-major order, one element at a time.
std::vector<int64_t> FlatIndices(const Box& local, const Box& box) {
  std::vector<int64_t> flat;
  std::vector<int64_t> index = box.global_offset;
  if (box.empty()) return flat;
  while (true) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      at = at * local.shape[d] + index[d] - local.global_offset[d];
    }
    flat.push_back(at);
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == box.global_offset[d - 1] + box.shape[d - 1]) {
      index[d - 1] = box.global_offset[d - 1];
      --d;
    }
    if (d == 0) return flat;
  }
}

// Every range of every split: concatenated, the boxes are exactly begin, begin + 1, ..., end - 1.
void CheckAllCuts(const Box& local) {
  const int64_t count = ElementCount(local.shape);
  const size_t most = std::max<size_t>(1, 2 * local.shape.size() - (local.shape.empty() ? 0 : 1));
  for (int64_t begin = 0; begin <= count; ++begin) {
    for (int64_t end = begin; end <= count; ++end) {
      const std::vector<Box> boxes = FlatRangeToBoxes(local, begin, end);
      ASSERT_LE(boxes.size(), most) << ToString(local) << " " << begin << " " << end;
      int64_t at = begin;
      for (const Box& box : boxes) {
        ASSERT_FALSE(box.empty());
        ASSERT_TRUE(Contains(local, box)) << ToString(local) << ToString(box);
        for (const int64_t flat : FlatIndices(local, box)) {
          ASSERT_EQ(flat, at++) << ToString(local) << " " << begin << " " << end;
        }
      }
      ASSERT_EQ(at, end) << ToString(local) << " " << begin << " " << end;
    }
  }
}

TEST(FlatRange, AllCutsOfAScalar) { CheckAllCuts({}); }

TEST(FlatRange, AllCutsOfSmallShapes) {
  for (int64_t a = 0; a <= 5; ++a) {
    CheckAllCuts({{7}, {a}});
    for (int64_t b = 0; b <= 5; ++b) {
      CheckAllCuts({{7, 1}, {a, b}});
      for (int64_t c = 0; c <= 4; ++c) {
        CheckAllCuts({{0, 3, 100}, {a, b, c}});
        if (a > 3 || b > 3) continue;
        for (int64_t d = 0; d <= 3; ++d) CheckAllCuts({{2, 0, 5, 1}, {a, b, c, d}});
      }
    }
  }
}

TEST(FlatRange, ReachesTheBound) {
  // Begins and ends in the middle of a row, a plane and a cube.
  const Box local = WholeBox({4, 4, 4});
  EXPECT_EQ(FlatRangeToBoxes(local, 1, 63).size(), 5u);
  EXPECT_EQ(FlatRangeToBoxes(local, 0, 64), std::vector<Box>{local});
}

}  // namespace
}  // namespace tessera
