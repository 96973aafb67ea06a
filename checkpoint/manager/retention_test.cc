#include "checkpoint/manager/retention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tessera::ckpt {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// Steps 10, 20, ... 100; step s was saved 100 - s minutes ago.
std::vector<RetentionCandidate> Ten() {
  std::vector<RetentionCandidate> ten;
  for (int64_t step = 10; step <= 100; step += 10) {
    ten.push_back({.step = step, .saved_at = kNow - absl::Minutes(100 - step)});
  }
  return ten;
}

std::vector<int64_t> Kept(const RetentionOptions& options,
                          const std::vector<RetentionCandidate>& candidates) {
  std::vector<bool> deleted(candidates.size());
  for (const size_t i : ChooseToDelete(options, candidates, kNow)) deleted[i] = true;
  std::vector<int64_t> steps;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!deleted[i]) steps.push_back(candidates[i].step);
  }
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(RetentionTest, EachPolicyAlone) {
  EXPECT_EQ(Kept({}, Ten()).size(), 10u);
  EXPECT_EQ(Kept({.newest = 3}, Ten()), (Steps{80, 90, 100}));
  EXPECT_EQ(Kept({.newest = std::numeric_limits<int64_t>::max()}, Ten()).size(), 10u);
  // The newest is kept whatever the policy.
  EXPECT_EQ(Kept({.every_steps = 40}, Ten()), (Steps{40, 80, 100}));
  EXPECT_EQ(Kept({.within = absl::Minutes(20)}, Ten()), (Steps{80, 90, 100}));
  std::vector<RetentionCandidate> measured = Ten();
  for (RetentionCandidate& c : measured)
    c.validation_loss = std::abs(static_cast<double>(c.step - 35));
  EXPECT_EQ(Kept({.best = 3}, measured), (Steps{30, 40, 50, 100}));
}

TEST(RetentionTest, AnyCombination) {
  std::vector<RetentionCandidate> measured = Ten();
  measured[1].validation_loss = 1.0;
  measured[2].validation_loss = std::numeric_limits<double>::quiet_NaN();
  measured[5].validation_loss = 1.0;  // of equal ones the newer
  EXPECT_EQ(
      Kept({.newest = 1, .every_steps = 50, .best = 1, .within = absl::Minutes(10)}, measured),
      (Steps{50, 60, 90, 100}));
  // Checkpoints without a loss are not the best.
  EXPECT_EQ(Kept({.best = 5}, measured), (Steps{20, 60, 100}));
}

TEST(RetentionTest, NeverTheNewestGoodOne) {
  std::vector<RetentionCandidate> candidates = Ten();
  for (size_t i = 4; i < candidates.size(); ++i) candidates[i].good = false;
  EXPECT_EQ(Kept({.newest = 2}, candidates), (Steps{40, 90, 100}));
  for (RetentionCandidate& c : candidates) c.good = false;
  EXPECT_EQ(Kept({.newest = 2}, candidates), (Steps{90, 100}));
}

TEST(RetentionTest, NothingToChooseFrom) {
  EXPECT_TRUE(ChooseToDelete({.newest = 1}, {}, kNow).empty());
  EXPECT_EQ(Kept({.newest = 1}, {{.step = 7, .good = false}}), (Steps{7}));
}

// A policy that is added, or made more generous, never deletes more.
TEST(RetentionTest, MoreGenerousPoliciesKeepMore) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<RetentionCandidate> candidates = Ten();
    for (RetentionCandidate& c : candidates) {
      c.good = random() % 3 != 0;
      if (random() % 2 == 0) c.validation_loss = static_cast<double>(random() % 5);
    }
    RetentionOptions less{.newest = static_cast<int64_t>(1 + random() % 3),
                          .best = static_cast<int64_t>(random() % 3)};
    RetentionOptions more = less;
    more.newest += static_cast<int64_t>(random() % 3);
    more.best += static_cast<int64_t>(random() % 3);
    more.every_steps = static_cast<int64_t>(random() % 40);
    const Steps few = Kept(less, candidates), many = Kept(more, candidates);
    EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end()));
    EXPECT_GE(few.size(), static_cast<size_t>(less.newest));
    EXPECT_EQ(few.back(), 100);
  }
}

}  // namespace
}  // namespace tessera::ckpt
