#include "compute/parallel/tree_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

namespace tessera {
namespace {

std::vector<double> RandomLeaves(int64_t n, std::mt19937_64& random) {
  std::vector<double> leaves(n);
  std::normal_distribution<double> normal;
  for (double& leaf : leaves) leaf = std::exp(10 * normal(random)) * normal(random);
  return leaves;
}

// By splitting lists, as the definition reads.
double Oracle(std::vector<double> leaves) {
  if (leaves.empty()) return 0;
  if (leaves.size() == 1) return leaves[0];
  size_t middle = 1;
  while (middle * 2 < leaves.size()) middle *= 2;
  const std::vector<double> right(leaves.begin() + static_cast<int64_t>(middle), leaves.end());
  leaves.resize(middle);
  return Oracle(leaves) + Oracle(right);
}

TEST(TreeSumTest, IsTheBinaryTree) {
  std::mt19937_64 random(1);
  for (int64_t n = 0; n <= 130; ++n) {
    const std::vector<double> leaves = RandomLeaves(n, random);
    EXPECT_EQ(TreeSum(leaves), Oracle(leaves)) << n;
  }
  const std::vector<double> six = RandomLeaves(6, random);
  EXPECT_EQ(TreeSum(six), ((six[0] + six[1]) + (six[2] + six[3])) + (six[4] + six[5]));
}

TEST(TreeSumTest, OwnersOfRunsGetTheBitsOfOneOwner) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t n = static_cast<int64_t>(random() % 200);
    const std::vector<double> leaves = RandomLeaves(n, random);
    std::vector<int64_t> ends(1 + random() % 7, n);
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      ends[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(n + 1));
    }
    std::sort(ends.begin(), ends.end());
    std::vector<double> sums;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const size_t before = sums.size();
      for (const Subtree& tree : SubtreesOf(begin, end, n)) {
        sums.push_back(TreeSum(std::span(leaves).subspan(tree.begin, tree.end - tree.begin)));
      }
      const auto count = static_cast<int64_t>(sums.size() - before);
      EXPECT_EQ(count, SubtreeCount(begin, end, n));
      EXPECT_LE(static_cast<double>(count), 1 + 2 * std::log2(static_cast<double>(n) + 1));
      begin = end;
    }
    EXPECT_EQ(CombineSubtrees(ends, sums), Oracle(leaves)) << "n " << n;
  }
}

TEST(TreeSumTest, OneOwnerHandsOverOneSum) {
  EXPECT_EQ(SubtreeCount(0, 13, 13), 1);
  EXPECT_EQ(SubtreeCount(5, 5, 13), 0);
  EXPECT_EQ(SubtreeCount(0, 0, 0), 0);
  EXPECT_EQ(SubtreeCount(1, 8, 8), 3);  // 1; 2 and 3; 4 to 7
}

}  // namespace
}  // namespace tessera
