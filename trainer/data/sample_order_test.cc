#include "trainer/data/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace tessera {
namespace {

TEST(SampleOrderTest, EveryEpochIsAPermutation) {
  for (int64_t n = 1; n <= 2000; ++n) {
    const SampleOrder order(1234, n);
    const int64_t epoch = n % 5;
    std::vector<bool> seen(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = order.SampleAt(epoch * n + i);
      ASSERT_TRUE(sample >= 0 && sample < n) << n;
      ASSERT_FALSE(seen[sample]) << n << " " << i;
      seen[sample] = true;
    }
  }
}

TEST(SampleOrderTest, LargeSizesStayInRangeAndDoNotRepeat) {
  for (const int64_t n : {int64_t{65536}, int64_t{65537}, (int64_t{1} << 32) - 1, int64_t{1} << 40,
                          (int64_t{1} << 53) + 1, INT64_MAX}) {
    const SampleOrder order(7, n);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 2000; ++i) {
      const int64_t index = i < 1000 ? i : n - 2000 + i;
      const int64_t sample = order.Permute(3, index);
      ASSERT_TRUE(sample >= 0 && sample < n) << n;
      ASSERT_TRUE(seen.insert(sample).second) << n;
    }
  }
}

// Positions in checkpoints refer to samples by this order, which must never change.
TEST(SampleOrderTest, TheOrderIsFrozen) {
  const auto first = [](uint64_t seed, int64_t n, int64_t epoch) {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < 6; ++i) samples.push_back(SampleOrder(seed, n).SampleAt(epoch * n + i));
    return samples;
  };
  EXPECT_EQ(first(1234, 6, 0), (std::vector<int64_t>{5, 1, 3, 4, 0, 2}));
  EXPECT_EQ(first(1234, 1000, 0), (std::vector<int64_t>{550, 519, 675, 688, 836, 834}));
  EXPECT_EQ(first(1234, 1000, 1), (std::vector<int64_t>{690, 699, 756, 347, 939, 101}));
  EXPECT_EQ(first(1, int64_t{1} << 40, 0),
            (std::vector<int64_t>{147230633329, 593315193607, 179636724856, 921921266178,
                                  388755923882, 299453206576}));
}

TEST(SampleOrderTest, SeedsAndEpochsDiffer) {
  constexpr int64_t kN = 1000;
  const SampleOrder a(1, kN), b(2, kN);
  int same_seed = 0, same_epoch = 0, fixed = 0, successors = 0;
  for (int64_t i = 0; i < kN; ++i) {
    same_seed += a.Permute(0, i) == b.Permute(0, i);
    same_epoch += a.Permute(0, i) == a.Permute(1, i);
    fixed += a.Permute(0, i) == i;
    successors += i > 0 && a.Permute(0, i) == a.Permute(0, i - 1) + 1;
  }
  // Each is about Poisson with mean 1 for random permutations.
  for (const int count : {same_seed, same_epoch, fixed, successors}) EXPECT_LE(count, 8);
}

// Over many epochs every sample is equally often at every place, in small and larger sets.
TEST(SampleOrderTest, PlacesAreUniform) {
  for (const int64_t n : {2, 3, 5, 16, 17, 40}) {
    const SampleOrder order(99, n);
    constexpr int kEpochs = 4000;
    std::vector<int> counts(n * n);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      for (int64_t i = 0; i < n; ++i) ++counts[i * n + order.Permute(epoch, i)];
    }
    const double mean = double{kEpochs} / n;
    for (const int count : counts) EXPECT_NEAR(count, mean, 5.5 * std::sqrt(mean)) << n;
  }
}

TEST(SampleOrderTest, EpochOfAPosition) {
  const SampleOrder order(1, 10);
  EXPECT_EQ(order.EpochAt(0), 0);
  EXPECT_EQ(order.EpochAt(9), 0);
  EXPECT_EQ(order.EpochAt(10), 1);
  EXPECT_EQ(order.SampleAt(25), order.Permute(2, 5));
}

}  // namespace
}  // namespace tessera
