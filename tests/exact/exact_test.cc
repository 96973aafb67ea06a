// EXACT numerics: every loss, gradient norm and every bit of weights and optimizer state is the
// same on every topology.

#include "gtest/gtest.h"
#include "tests/exact/kinds_and_topologies.h"
#include "tests/support/training.h"

namespace tessera {
namespace {

using testing::TrainedRun;

class ExactTest : public ::testing::TestWithParam<KindOnTopology> {};

TEST_P(ExactTest, IsTheSameToTheLastBit) {
  const TrainedRun& single = OnOneProcess(GetParam(), /*exact=*/true);
  const TrainedRun run = TrainPair(GetParam(), /*exact=*/true);
  ASSERT_EQ(single.losses.size(), kSteps);
  EXPECT_LT(single.losses.back(), single.losses.front());
  EXPECT_EQ(testing::FirstDifference(single, run), "");
}

INSTANTIATE_TEST_SUITE_P(All, ExactTest, ::testing::ValuesIn(Pairs()), NameOfPair);

}  // namespace
}  // namespace tessera
