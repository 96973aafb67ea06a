#include "layout/box.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/testing.h"

namespace tessera {
namespace {

TEST(Box, CountsElements) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({0}), 0);
  EXPECT_EQ(ElementCount({2, 3, 4}), 24);
  EXPECT_EQ(ContiguousStrides({2, 3, 4}), (std::vector<int64_t>{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides({}), std::vector<int64_t>{});
  EXPECT_EQ(ContiguousStrides({2, 0, 4}), (std::vector<int64_t>{4, 4, 1}));
  EXPECT_TRUE((Box{{1, 1}, {0, 4}}.empty()));
  EXPECT_FALSE(Box{}.empty());
}

// Compared with membership of each element, for all pairs of intervals and all pairs of them in two
// dims.
TEST(Box, IntersectsAndContainsLikeSets) {
  constexpr int64_t kExtent = 4;
  std::vector<Box> boxes;
  for (int64_t a = 0; a <= kExtent; ++a) {
    for (int64_t b = a; b <= kExtent; ++b) {
      for (int64_t c = 0; c <= kExtent; ++c) {
        for (int64_t d = c; d <= kExtent; ++d) boxes.push_back({{a, c}, {b - a, d - c}});
      }
    }
  }
  const auto bits = [](const Box& box) {
    uint32_t mask = 0;
    for (int64_t i = 0; i < box.shape[0]; ++i) {
      for (int64_t j = 0; j < box.shape[1]; ++j) {
        mask |= 1u << ((box.global_offset[0] + i) * kExtent + box.global_offset[1] + j);
      }
    }
    return mask;
  };
  for (const Box& x : boxes) {
    for (const Box& y : boxes) {
      const std::optional<Box> common = Intersect(x, y);
      ASSERT_EQ(common ? bits(*common) : 0, bits(x) & bits(y)) << ToString(x) << ToString(y);
      ASSERT_EQ(common.has_value(), (bits(x) & bits(y)) != 0) << ToString(x) << ToString(y);
      ASSERT_EQ(Contains(x, y), (bits(y) & ~bits(x)) == 0) << ToString(x) << ToString(y);
    }
  }
}

TEST(Box, ScalarsIntersectAndRanksMustAgree) {
  EXPECT_EQ(Intersect(Box{}, Box{}), Box{});
  EXPECT_TRUE(Contains(Box{}, Box{}));
  EXPECT_EQ(Intersect(WholeBox({2}), WholeBox({2, 2})), std::nullopt);
  EXPECT_FALSE(Contains(WholeBox({2}), WholeBox({2, 2})));
}

TEST(Box, Prints) {
  EXPECT_EQ(ToString(Box{{0, 8}, {4, 8}}), "[0:4,8:16]");
  EXPECT_EQ(ToString(Box{{0, 0, 12345678901}, {1, 2, 3}}), "[0:1,0:2,12345678901:12345678904]");
  EXPECT_EQ(ToString(Box{{0}, {0}}), "[0:0]");
  EXPECT_EQ(ToString(Box{}), "[]");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ToString(Box{{kMax}, {1}}), "[9223372036854775807:9223372036854775807]");
  EXPECT_EQ(ShapeToString({4, 8}), "[4,8]");
}

TEST(Bounds, CountsOnlyWhatFits) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CheckedElementCount({}).value(), 1);
  EXPECT_EQ(CheckedElementCount({kMax}).value(), kMax);
  EXPECT_EQ(CheckedElementCount({3, 0, 5}).value(), 0);
  EXPECT_FALSE(CheckedElementCount({kMax, 2}).ok());
  EXPECT_FALSE(CheckedElementCount({kMax, 0, 2}).ok());
  EXPECT_FALSE(CheckedElementCount({2, -1}).ok());
  EXPECT_OK(CheckedElementCount(Shape(kMaxDims, 1)));
  EXPECT_FALSE(CheckedElementCount(Shape(kMaxDims + 1, 1)).ok());
  EXPECT_EQ(CheckedByteCount({3, 4}, 8).value(), 96);
  EXPECT_FALSE(CheckedByteCount({kMax}, 2).ok());
}

TEST(Bounds, FindsBoxesOutside) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_OK(CheckBoxInside({4, 8}, {{0, 0}, {4, 8}}));
  EXPECT_OK(CheckBoxInside({4, 8}, {{4, 8}, {0, 0}}));
  EXPECT_OK(CheckBoxInside({}, {}));
  EXPECT_FALSE(CheckBoxInside({4, 8}, {{0}, {4}}).ok());
  EXPECT_FALSE(CheckBoxInside({4}, {{0}, {5}}).ok());
  EXPECT_FALSE(CheckBoxInside({4}, {{5}, {0}}).ok());
  EXPECT_FALSE(CheckBoxInside({4}, {{-1}, {2}}).ok());
  EXPECT_FALSE(CheckBoxInside({4}, {{1}, {-1}}).ok());
  EXPECT_FALSE(CheckBoxInside({4}, {{kMax}, {kMax}}).ok());
  const absl::Status status = CheckBoxInside({4, 8}, {{0, 6}, {4, 3}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("dim 1 offset 6"), status.message().npos) << status;
}

}  // namespace
}  // namespace tessera
