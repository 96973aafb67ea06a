#include "layout/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>
#include <utility>

#include "base/testing.h"

namespace tessera {
namespace {

using Kind = CoverageProblem::Kind;

bool Holds(const Box& box, const std::vector<int64_t>& index) {
  for (size_t d = 0; d < index.size(); ++d) {
    const int64_t at = index[d] - box.global_offset[d];
    if (at < 0 || at >= box.shape[d]) return false;
  }
  return true;
}

std::vector<size_t> Holders(const std::vector<Box>& boxes, const std::vector<int64_t>& index) {
  std::vector<size_t> holders;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (Holds(boxes[i], index)) holders.push_back(i);
  }
  return holders;
}

bool OracleIsPartition(const Shape& shape, const std::vector<Box>& boxes) {
  const int64_t count = ElementCount(shape);
  for (int64_t flat = 0; flat < count; ++flat) {
    std::vector<int64_t> index(shape.size());
    int64_t rest = flat;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    if (Holders(boxes, index).size() != 1) return false;
  }
  return true;
}

// Expects the answer of the oracle, with a correct example.
void Check(const Shape& shape, const std::vector<Box>& boxes) {
  const std::optional<CoverageProblem> problem = FindCoverageProblem(shape, boxes);
  ASSERT_EQ(!problem.has_value(), OracleIsPartition(shape, boxes));
  if (!problem) return;
  ASSERT_EQ(problem->index.size(), shape.size());
  ASSERT_TRUE(Holds(WholeBox(shape), problem->index));
  const std::vector<size_t> holders = Holders(boxes, problem->index);
  if (problem->kind == Kind::kGap) {
    ASSERT_TRUE(holders.empty()) << ToString(*problem, boxes);
  } else {
    ASSERT_EQ(problem->kind, Kind::kOverlap);
    ASSERT_LT(problem->first, problem->second);
    ASSERT_TRUE(std::count(holders.begin(), holders.end(), problem->first));
    ASSERT_TRUE(std::count(holders.begin(), holders.end(), problem->second));
  }
}

// Cuts a box at random planes until it falls into about `pieces` boxes.
std::vector<Box> RandomPartition(const Shape& shape, int pieces, std::mt19937_64& random) {
  std::vector<Box> boxes = {WholeBox(shape)};
  for (int i = 0; i < 4 * pieces && static_cast<int>(boxes.size()) < pieces; ++i) {
    Box& box = boxes[random() % boxes.size()];
    if (shape.empty()) break;
    const size_t d = random() % shape.size();
    if (box.shape[d] < 2) continue;
    const int64_t cut = 1 + static_cast<int64_t>(random() % (box.shape[d] - 1));
    Box high = box;
    high.global_offset[d] += cut;
    high.shape[d] -= cut;
    box.shape[d] = cut;
    boxes.push_back(high);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

TEST(Coverage, AgreesWithTheOracleOnDamagedPartitions) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    Shape shape(random() % 5);
    for (int64_t& extent : shape) extent = 1 + static_cast<int64_t>(random() % 6);
    std::vector<Box> boxes = RandomPartition(shape, 1 + random() % 12, random);
    Check(shape, boxes);
    if (testing::Test::HasFatalFailure()) return;
    Box& victim = boxes[random() % boxes.size()];
    switch (random() % 4) {
      case 0:  // a missing shard
        victim = boxes.back();
        boxes.pop_back();
        break;
      case 1:  // a replica
        boxes.push_back(victim);
        break;
      case 2:  // a shard that shrinks
        if (!shape.empty()) --victim.shape[random() % shape.size()];
        break;
      default:  // a shard that moves
        if (!shape.empty()) {
          const size_t d = random() % shape.size();
          if (victim.global_offset[d] > 0) --victim.global_offset[d];
        }
    }
    Check(shape, boxes);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Coverage, EdgeCases) {
  EXPECT_FALSE(FindCoverageProblem({}, std::vector<Box>{Box{}}));
  EXPECT_EQ(FindCoverageProblem({}, {})->kind, Kind::kGap);
  EXPECT_EQ(FindCoverageProblem({}, std::vector<Box>(2))->kind, Kind::kOverlap);
  EXPECT_FALSE(FindCoverageProblem({0, 4}, {}));
  EXPECT_FALSE(FindCoverageProblem({0, 4}, std::vector<Box>(2, Box{{0, 0}, {0, 4}})));
  // Empty boxes contain no element, wherever they are.
  EXPECT_FALSE(FindCoverageProblem({4}, std::vector<Box>{{{2}, {0}}, {{0}, {4}}}));
}

TEST(Coverage, ReportsBoxesOutside) {
  for (const Box& box :
       {Box{{0}, {5}}, Box{{5}, {0}}, Box{{-1}, {2}}, Box{{0, 0}, {4, 1}}, Box{}}) {
    const std::vector<Box> boxes = {{{0}, {4}}, box};
    const std::optional<CoverageProblem> problem = FindCoverageProblem({4}, boxes);
    ASSERT_TRUE(problem.has_value());
    EXPECT_EQ(problem->kind, Kind::kOutside);
    EXPECT_EQ(problem->first, 1u);
    EXPECT_NE(ToString(*problem, boxes).find("shard 1"), std::string::npos);
  }
}

TEST(Coverage, Messages) {
  const std::vector<Box> overlapping = {{{0, 0}, {4, 8}}, {{4, 0}, {4, 8}}, {{0, 4}, {2, 4}}};
  EXPECT_EQ(ToString(*FindCoverageProblem({8, 8}, overlapping), overlapping),
            "element [0,4] is in shards 0 [0:4,0:8] and 2 [0:2,4:8]");
  const std::vector<Box> gap = {{{0, 0}, {3, 8}}, {{4, 0}, {4, 8}}};
  EXPECT_EQ(ToString(*FindCoverageProblem({8, 8}, gap), gap), "element [3,0] is in no shard");
}

// A hundred thousand boxes of each kind that saves produce; a quadratic check would take minutes.
TEST(Coverage, ManyShards) {
  std::mt19937_64 random(TestSeed());
  std::map<std::string, std::pair<Shape, std::vector<Box>>> cases;
  constexpr int64_t kSide = 316;
  auto& grid = cases["grid"];
  grid.first = {kSide * 4, kSide * 4};
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t j = 0; j < kSide; ++j) grid.second.push_back({{i * 4, j * 4}, {4, 4}});
  }
  auto& slabs = cases["slabs"];
  slabs.first = {100000, 64};
  for (int64_t i = 0; i < 100000; ++i) slabs.second.push_back({{i, 0}, {1, 64}});
  auto& flat = cases["flat ranges"];
  flat.first = {1000, 50, 77};
  const int64_t count = ElementCount(flat.first);
  for (int64_t at = 0; at < count; at += 193) {
    const auto boxes = FlatRangeToBoxes(WholeBox(flat.first), at, std::min(at + 193, count));
    flat.second.insert(flat.second.end(), boxes.begin(), boxes.end());
  }
  cases["random"] = {{1 << 12, 1 << 10, 64},
                     RandomPartition({1 << 12, 1 << 10, 64}, 100000, random)};
  for (auto& [name, test_case] : cases) {
    auto& [shape, boxes] = test_case;
    std::shuffle(boxes.begin(), boxes.end(), random);
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(FindCoverageProblem(shape, boxes)) << name;
    std::printf("%s: %zu boxes, %.0f ms of CPU\n", name.c_str(), boxes.size(),
                1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    boxes.pop_back();
    EXPECT_EQ(FindCoverageProblem(shape, boxes)->kind, Kind::kGap) << name;
  }
}

}  // namespace
}  // namespace tessera
