// FAST numerics: the same on every topology up to rounding, and the same bits when a topology runs
// again.

#include "gtest/gtest.h"
#include "tests/exact/kinds_and_topologies.h"
#include "tests/support/training.h"

namespace tessera {
namespace {

using testing::TrainedRun;

class FastTest : public ::testing::TestWithParam<KindOnTopology> {};

TEST_P(FastTest, IsTheSameToRoundingAndRepeatsItself) {
  const TrainedRun& single = OnOneProcess(GetParam(), /*exact=*/false);
  const TrainedRun first = TrainPair(GetParam(), /*exact=*/false);
  ASSERT_EQ(first.losses.size(), kSteps);
  EXPECT_LT(testing::LargestLossDifference(single, first), GetParam().kind.bf16 ? 2e-2 : 1e-5);
  if (!GetParam().repeats) return;
  const TrainedRun second = TrainPair(GetParam(), /*exact=*/false);
  EXPECT_EQ(testing::FirstDifference(first, second), "");
}

INSTANTIATE_TEST_SUITE_P(All, FastTest, ::testing::ValuesIn(Pairs()), NameOfPair);

}  // namespace
}  // namespace tessera
