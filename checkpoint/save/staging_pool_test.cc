// Staging memory stays within its limit, and a note says what was missing.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/testing.h"
#include "checkpoint/save/staging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;

TEST(StagingPoolTest, GivesWhatIsWantedAndKeepsIt) {
  StagingPool pool([] { return uint64_t{1} << 30; });
  pool.Want(UINT64_MAX);
  ASSERT_OK(pool.Reserve({10 * kPage, UINT64_MAX, kPage}));
  const std::byte* const data = pool.memory().data();
  EXPECT_EQ(pool.memory().size(), 10 * kPage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kPage, 0);
  EXPECT_EQ(pool.note(), "");
  EXPECT_FALSE(pool.Prefault());
  ASSERT_OK(pool.Reserve({5 * kPage, UINT64_MAX, kPage}));
  EXPECT_EQ(pool.memory().data(), data);
  EXPECT_EQ(pool.memory().size(), 5 * kPage);
  ASSERT_OK(pool.Reserve({20 * kPage, UINT64_MAX, kPage}));
  EXPECT_EQ(pool.memory().size(), 20 * kPage);
  ASSERT_OK(pool.Reserve({0, UINT64_MAX, 0}));
  EXPECT_EQ(pool.memory().size(), 0);
}

TEST(StagingPoolTest, IsMadePresentInSteps) {
  StagingPool pool([] { return uint64_t{1} << 30; });
  pool.Want(UINT64_MAX);
  EXPECT_FALSE(pool.Prefault());
  ASSERT_OK(pool.Reserve({uint64_t{10} << 20, UINT64_MAX, kPage}));
  int steps = 1;
  EXPECT_EQ(pool.present_bytes(), 0);
  while (pool.Prefault()) EXPECT_EQ(pool.present_bytes(), steps++ * uint64_t{4} << 20);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(pool.present_bytes(), uint64_t{10} << 20);
  EXPECT_FALSE(pool.Prefault());
}

TEST(StagingPoolTest, IsMadePresentAsFarAsItIsNeeded) {
  StagingPool pool([] { return uint64_t{1} << 30; });
  ASSERT_OK(pool.Reserve({uint64_t{10} << 20, UINT64_MAX, kPage}));
  pool.Want(uint64_t{5} << 20);
  EXPECT_TRUE(pool.Prefault());
  EXPECT_FALSE(pool.Prefault());
  EXPECT_EQ(pool.present_bytes(), uint64_t{5} << 20);
}

TEST(StagingPoolTest, WhatOthersTouchedIsPresentToo) {
  StagingPool pool([] { return uint64_t{1} << 30; });
  pool.Want(UINT64_MAX);
  ASSERT_OK(pool.Reserve({uint64_t{10} << 20, UINT64_MAX, kPage}));
  pool.SetPresent(9 << 20);
  pool.SetPresent(5 << 20);
  EXPECT_EQ(pool.present_bytes(), 9 << 20);
  EXPECT_FALSE(pool.Prefault());
  EXPECT_EQ(pool.present_bytes(), 10 << 20);
  ASSERT_OK(pool.Reserve({2 * kPage, UINT64_MAX, kPage}));
  EXPECT_EQ(pool.present_bytes(), 2 * kPage);
  ASSERT_OK(pool.Reserve({uint64_t{20} << 20, UINT64_MAX, kPage}));
  EXPECT_EQ(pool.present_bytes(), 0) << "other memory";
}

TEST(StagingPoolTest, StaysWithinTheLimitAndHalfOfWhatIsAvailable) {
  uint64_t available = 100 * kPage;
  StagingPool pool([&] { return available; });
  ASSERT_OK(pool.Reserve({80 * kPage, 10 * kPage + 5, kPage}));
  EXPECT_EQ(pool.memory().size(), 10 * kPage);
  EXPECT_THAT(pool.note(), AllOf(HasSubstr("takes 320 KiB"), HasSubstr("staging_bytes: 40.0 KiB"),
                                 HasSubstr("used: 40.0 KiB")));
  pool.SetPresent(10 * kPage);
  available -= 10 * kPage;  // taken by the pool
  ASSERT_OK(pool.Reserve({80 * kPage, UINT64_MAX, kPage}));
  EXPECT_EQ(pool.memory().size(), 50 * kPage);
  EXPECT_THAT(pool.note(), AllOf(HasSubstr("available: 400 KiB"), HasSubstr("no limit")));
  ASSERT_OK(pool.Reserve({80 * kPage, 1, 2 * kPage})) << "the least that will do";
  EXPECT_EQ(pool.memory().size(), 2 * kPage);
}

TEST(StagingPoolTest, SaysWhatIsMissing) {
  StagingPool pool([] { return uint64_t{5000}; });
  const absl::Status status = pool.Reserve({80 * kPage, UINT64_MAX, 2 * kPage});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("8.00 KiB"), HasSubstr("320 KiB"), HasSubstr("4.88 KiB")));
}

}  // namespace
}  // namespace tessera::ckpt
