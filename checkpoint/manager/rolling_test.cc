#include "checkpoint/manager/rolling.h"

#include <gtest/gtest.h>

namespace tessera::ckpt {
namespace {

TEST(RollingTest, ReplacesAnEmptySlotElseTheOlderOne) {
  EXPECT_EQ(ChooseRollingSlot({}), 0);
  EXPECT_EQ(ChooseRollingSlot({7, std::nullopt}), 1);
  EXPECT_EQ(ChooseRollingSlot({std::nullopt, 7}), 0);
  EXPECT_EQ(ChooseRollingSlot({7, 9}), 0);
  EXPECT_EQ(ChooseRollingSlot({9, 7}), 1);
  EXPECT_EQ(ChooseRollingSlot({7, 7}), 0);
  EXPECT_EQ(ChooseRollingSlot({0, std::nullopt}), 1);
}

}  // namespace
}  // namespace tessera::ckpt
