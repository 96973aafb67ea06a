// Which checkpoints a policy gives up: never the newest good one.

#include "checkpoint/manager/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

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

// Steps in the order in which they make room.
Steps MakeRoom(const RetentionOptions& options, const std::vector<RetentionCandidate>& candidates,
               const RetentionCandidate& coming) {
  Steps steps;
  for (const size_t i : ChooseToMakeRoom(options, candidates, coming, kNow)) {
    steps.push_back(candidates[i].step);
  }
  return steps;
}

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
  // Losses of other data are not compared.
  measured[8].validation_loss = 3.0;
  measured[8].validation_data = "other";
  EXPECT_EQ(Kept({.best = 1}, measured), (Steps{60, 90, 100}));
  measured[8].validation_loss.reset();
  // Checkpoints without a loss are not the best.
  EXPECT_EQ(Kept({.best = 5}, measured), (Steps{20, 60, 100}));
}

TEST(RetentionTest, NeverTheNewestGoodOne) {
  std::vector<RetentionCandidate> candidates = Ten();
  for (size_t i = 4; i < candidates.size(); ++i) candidates[i].good = false;
  EXPECT_EQ(Kept({.newest = 2}, candidates), (Steps{40, 90, 100}));
  // Nor the proven one before it.
  candidates[3].proven = false;
  EXPECT_EQ(Kept({.newest = 2}, candidates), (Steps{30, 40, 90, 100}));
  EXPECT_EQ(MakeRoom({.newest = 2}, candidates, {.step = 110, .good = false}),
            (Steps{10, 20, 50, 60, 70, 80, 90}));
  for (RetentionCandidate& c : candidates) c.good = false;
  EXPECT_EQ(Kept({.newest = 2}, candidates), (Steps{90, 100}));
}

// Whatever is damaged, as many are kept that can be loaded.
TEST(RetentionTest, DamagedOnesAreNotAmongTheNewest) {
  std::vector<RetentionCandidate> candidates = Ten();
  for (const size_t damaged : {2, 7, 9}) {
    candidates[damaged].intact = candidates[damaged].good = false;
  }
  EXPECT_EQ(Kept({.newest = 3}, candidates), (Steps{60, 70, 80, 90, 100}));
  EXPECT_EQ(Kept({.newest = 1}, candidates), (Steps{90, 100}));
  EXPECT_EQ(Kept({.every_steps = 60}, candidates), (Steps{60, 90, 100}));
  const RetentionCandidate coming = {.step = 110, .good = false};
  EXPECT_EQ(MakeRoom({.newest = 3}, candidates, coming), (Steps{30, 80, 100, 10, 20, 40, 50, 60}));
  EXPECT_EQ(MakeRoom({.every_steps = 10}, candidates, coming), (Steps{30, 80, 100}));
  EXPECT_EQ(MakeRoom({}, candidates, coming), (Steps{}));
}

TEST(RetentionTest, NothingToChooseFrom) {
  EXPECT_TRUE(ChooseToDelete({.newest = 1}, {}, kNow).empty());
  EXPECT_EQ(Kept({.newest = 1}, {{.step = 7, .good = false}}), (Steps{7}));
}

TEST(RetentionTest, MakesRoomWithoutTheNewestGoodOne) {
  const RetentionCandidate permanent = {.step = 50, .good = false};
  const RetentionCandidate rolling = {.step = 50, .rolling = true, .good = false};
  // Rolling ones, and none of the two permanent ones that the policy keeps.
  std::vector<RetentionCandidate> saved = {
      {.step = 10}, {.step = 20}, {.step = 23, .rolling = true}, {.step = 26, .rolling = true}};
  EXPECT_EQ(MakeRoom({}, saved, permanent), (Steps{23}));
  EXPECT_EQ(MakeRoom({.newest = 5}, saved, permanent), (Steps{23}));
  // The coming one makes the first superfluous; the newest rolling one counts last of all.
  EXPECT_EQ(MakeRoom({.newest = 2}, saved, permanent), (Steps{10, 23, 20}));
  EXPECT_EQ(MakeRoom({.newest = 2}, saved, rolling), (Steps{23, 10, 20}));
  EXPECT_EQ(MakeRoom({.newest = 3}, saved, rolling), (Steps{23, 10}));
  EXPECT_EQ(MakeRoom({.newest = 2, .every_steps = 20}, saved, rolling), (Steps{23, 10}));
  // The newest one is permanent.
  saved.push_back({.step = 30});
  EXPECT_EQ(MakeRoom({.newest = 1}, saved, permanent), (Steps{10, 20, 23, 26}));
  EXPECT_EQ(MakeRoom({.newest = 2}, saved, rolling), (Steps{10, 23, 26, 20}));
  // The newest ones are not good.
  saved[4].good = saved[3].good = false;
  EXPECT_EQ(MakeRoom({}, saved, rolling), (Steps{26}));
  for (RetentionCandidate& candidate : saved) candidate.good = false;
  EXPECT_EQ(MakeRoom({.newest = 1}, saved, rolling), (Steps{}));
  EXPECT_EQ(MakeRoom({.newest = 1}, {}, rolling), (Steps{}));
}

// Whatever has made room, and when the coming save fails: the newest good checkpoint is there, and
// as many of both kinds as the policy keeps of permanent ones.
TEST(RetentionTest, RoomNeverCostsTheNewestGoodOne) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    std::vector<RetentionCandidate> candidates = Ten();
    candidates.resize(random() % 11);
    int64_t newest_good = 0;
    for (RetentionCandidate& c : candidates) {
      c.good = random() % 4 != 0;
      c.rolling = random() % 2 == 0;
      if (c.good) newest_good = c.step;
    }
    const RetentionOptions options{.newest = static_cast<int64_t>(random() % 4),
                                   .every_steps = static_cast<int64_t>(random() % 2 * 30)};
    const RetentionCandidate coming = {.step = 110, .rolling = random() % 2 == 0, .good = false};
    const Steps room = MakeRoom(options, candidates, coming);
    EXPECT_EQ(std::set<int64_t>(room.begin(), room.end()).size(), room.size());
    if (newest_good == 0) EXPECT_TRUE(room.empty());
    EXPECT_EQ(std::ranges::count(room, newest_good), 0);
    for (const RetentionCandidate& c : candidates) {
      if (c.rolling || std::ranges::count(room, c.step) == 0) continue;
      EXPECT_TRUE(options.deletes());
      EXPECT_FALSE(options.every_steps > 0 && c.step % options.every_steps == 0);
    }
    const int64_t permanent =
        std::ranges::count_if(candidates, [](const auto& c) { return !c.rolling; });
    const auto left = static_cast<int64_t>(candidates.size() - room.size());
    if (newest_good > 0) EXPECT_GE(left + 1, std::min(options.newest, permanent + 1));
  }
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
