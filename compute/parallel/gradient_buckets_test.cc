#include "compute/parallel/gradient_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/checked_math.h"

namespace tessera {
namespace {

int64_t Aligned(int64_t elements) { return RoundUp(elements, kGradientBlock); }

GradientLayout Layout(const std::vector<int64_t>& sizes) {
  GradientLayout layout;
  for (const int64_t size : sizes) {
    layout.parameters.push_back({.key = "p" + std::to_string(layout.parameters.size()),
                                 .begin = layout.value_elements,
                                 .elements = size});
    layout.value_elements += Aligned(size);
  }
  layout.gradient_elements = layout.value_elements;
  return layout;
}

TEST(GradientBucketsTest, AreCutAtParametersFromTheEnd) {
  const GradientLayout layout = Layout({300, 10, 256, 5000, 100, 200});
  const std::vector<GradientBucket> buckets = CutBuckets(layout, 600, 1);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].parameters, (std::vector<int>{4, 5}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<int>{3})) << "larger than a bucket";
  EXPECT_EQ(buckets[2].parameters, (std::vector<int>{1, 2}));
  EXPECT_EQ(buckets[3].parameters, (std::vector<int>{0}));
  EXPECT_EQ(buckets[0].end, layout.value_elements);
  for (size_t i = 1; i < buckets.size(); ++i) EXPECT_EQ(buckets[i].end, buckets[i - 1].begin);
  EXPECT_EQ(buckets.back().begin, 0);
}

TEST(GradientBucketsTest, PiecesAreEvenWholeBlocks) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (const GradientBucket& bucket : CutBuckets(Layout({1, 700, 5, 9000, 300}), 1500, ranks)) {
      ASSERT_EQ(static_cast<int>(bucket.piece_elements.size()), ranks);
      EXPECT_EQ(bucket.PieceBegin(0), bucket.begin);
      EXPECT_EQ(bucket.PieceEnd(ranks - 1), bucket.end);
      const auto [least, most] =
          std::minmax_element(bucket.piece_elements.begin(), bucket.piece_elements.end());
      EXPECT_LE(*most - *least, kGradientBlock);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(bucket.PieceBegin(rank) % kGradientBlock, 0);
      }
    }
  }
}

TEST(GradientBucketsTest, SpaceThatEndsWithinABlock) {
  GradientLayout layout = Layout({300});
  layout.value_elements = layout.gradient_elements = 300;
  const std::vector<GradientBucket> buckets = CutBuckets(layout, 1000, 3);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].piece_elements, (std::vector<int64_t>{256, 44, 0}));
}

// The table has the same boundaries on the stage where it comes first and where it comes last, and
// so has its second gradient.
TEST(GradientBucketsTest, TiedTablesStandAloneAndAreCutAlike) {
  GradientLayout first = Layout({1111, 100, 100}), last = Layout({100, 1111}), both = first;
  first.parameters[0].on_two_stages = last.parameters[1].on_two_stages = true;
  last.value_elements += 512;
  last.gradient_elements += 512;
  both.parameters[0].tied = true;
  both.parameters[0].second_begin = both.value_elements;
  both.gradient_elements += Aligned(1111);
  for (int ranks = 1; ranks <= 6; ++ranks) {
    const std::vector<GradientBucket> a = CutBuckets(first, 4096, ranks);
    const std::vector<GradientBucket> b = CutBuckets(last, 4096, ranks);
    const std::vector<GradientBucket> c = CutBuckets(both, 4096, ranks);
    ASSERT_EQ(a.size(), 2u);
    ASSERT_EQ(b.size(), 2u);
    ASSERT_EQ(c.size(), 3u);
    EXPECT_EQ(a[1].parameters, std::vector<int>{0});
    EXPECT_EQ(b[0].parameters, std::vector<int>{1});
    EXPECT_EQ(a[1].piece_elements, b[0].piece_elements);
    EXPECT_TRUE(c[0].second);
    EXPECT_EQ(c[0].begin, both.value_elements);
    EXPECT_FALSE(c[2].second);
    EXPECT_EQ(c[0].piece_elements, c[2].piece_elements);
    EXPECT_EQ(a[1].piece_elements, c[2].piece_elements);
  }
}

TEST(GradientBucketsTest, NothingToCut) { EXPECT_TRUE(CutBuckets(Layout({}), 100, 3).empty()); }

}  // namespace
}  // namespace tessera
