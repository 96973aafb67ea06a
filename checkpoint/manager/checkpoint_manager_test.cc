#include "checkpoint/include/checkpoint_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/testing/test_state.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
constexpr int64_t kRows = 300;  // a third on each rank

// A job of three ranks, which know different things.
class CheckpointManagerTest : public ::testing::Test {
 protected:
  // Options and facts of one rank. Facts may be changed from step to step.
  using OptionsOf = std::function<void(int rank, CheckpointManagerOptions&)>;
  using FactsOf = std::function<void(int rank, StepState&)>;

  // The steps of one run: rank 0's decisions, as "5 permanent signal", where they are not to do
  // nothing, and how each rank ends.
  struct Run {
    std::vector<std::string> decisions;
    std::vector<absl::Status> ends = std::vector<absl::Status>(kRanks);
  };
  Run Train(const SaveScheduleOptions& schedule, const FactsOf& facts = nullptr,
            const OptionsOf& change = nullptr) {
    Run run;
    std::vector<std::vector<std::string>> decisions(kRanks);
    RunRanks(kRanks, [&](ProcessGroup& group) {
      run.ends[group.rank()] = TrainRank(group, schedule, facts, change, decisions[group.rank()]);
    });
    EXPECT_THAT(decisions, Each(decisions[0]));
    run.decisions = decisions[0];
    return run;
  }
  absl::Status TrainRank(ProcessGroup& group, const SaveScheduleOptions& schedule,
                         const FactsOf& facts, const OptionsOf& change,
                         std::vector<std::string>& decisions) {
    const int rank = group.rank();
    CheckpointManagerOptions options;
    options.save.group = &group;
    options.save.timeout = absl::Seconds(20);
    options.schedule = schedule;
    if (change) change(rank, options);
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
    auto manager = CheckpointManager::Open(storage, nullptr, std::move(options));
    if (!manager.ok()) return manager.status();
    std::vector<float> part(kRows / kRanks);
    ShardedTensor tensor = {.name = "weight", .global_shape = {kRows}};
    tensor.shards = {
        Shard::Of(part, {.global_offset = {rank * kRows / kRanks}, .shape = {kRows / kRanks}})};
    const StateDict state = {{tensor}};
    const auto resumed = (*manager)->TryResume(state);
    if (!resumed.ok()) return resumed.status();
    int64_t step = resumed->checkpoint.has_value() ? resumed->checkpoint->step() : 0;
    EXPECT_THAT(part, Each(static_cast<float>(step)));
    for (bool ends = false; !ends;) {
      StepState now = {.step = ++step};
      part.assign(part.size(), static_cast<float>(step));
      if (facts) facts(rank, now);
      const auto decision = (*manager)->TrySave(now, state);
      if (!decision.ok()) return decision.status();
      ends = decision->end != EndReason::kNone;
      if (*decision == SaveDecision()) continue;
      constexpr const char* kSaves[] = {"", " rolling", " permanent"};
      constexpr const char* kEnds[] = {"",           " last",     " signal",  " records",
                                       " stop file", " duration", " interval"};
      decisions.push_back(absl::StrCat(step, kSaves[static_cast<int>(decision->save)],
                                       kEnds[static_cast<int>(decision->end)]));
    }
    return (*manager)->last_save();
  }

  void Clear() { storage_ = std::make_unique<MemoryStorage>(); }

  std::unique_ptr<MemoryStorage> storage_ = std::make_unique<MemoryStorage>();
};

TEST_F(CheckpointManagerTest, WhatOneRankKnowsDecidesForAll) {
  for (int who = 0; who < kRanks; ++who) {
    SCOPED_TRACE(who);
    const auto at_3 = [&](const std::function<void(StepState&)>& change) {
      return [=](int rank, StepState& now) {
        if (rank == who && now.step == 3) change(now);
      };
    };
    EXPECT_THAT(
        Train({.last_step = 9}, at_3([](StepState& now) { now.stop_signal = SIGTERM; })).decisions,
        ElementsAre("3 permanent signal"));
    Clear();
    EXPECT_THAT(
        Train({.last_step = 9}, at_3([](StepState& now) { now.records_fail = true; })).decisions,
        ElementsAre("3 permanent records"));
    Clear();
    const Run run = Train({.interval_steps = 3, .last_step = 5},
                          at_3([](StepState& now) { now.healthy = false; }));
    EXPECT_THAT(run.decisions, ElementsAre("4 permanent", "5 permanent last"));
    EXPECT_THAT(run.ends, Each(absl::OkStatus()));
    Clear();
  }
}

TEST_F(CheckpointManagerTest, TheStopFileOfOneRankEndsOneJob) {
  for (int who = 0; who < kRanks; ++who) {
    SCOPED_TRACE(who);
    const std::string path = absl::StrCat(::testing::TempDir(), "/stop-", who);
    std::filesystem::remove(path);
    std::ofstream(path) << 4;
    const auto reads = [&](int rank, CheckpointManagerOptions& options) {
      if (rank == who) options.stop_file = path;
    };
    EXPECT_THAT(Train({.last_step = 9}, nullptr, reads).decisions,
                ElementsAre("4 permanent stop file"));
    // Even where that checkpoint is lost, the request ends no other job.
    ASSERT_OK(storage_->DeleteTree("step-00000004"));
    EXPECT_THAT(Train({.last_step = 9}, nullptr, reads).decisions, ElementsAre("9 permanent last"));
    Clear();
  }
}

TEST_F(CheckpointManagerTest, SavesThatFailEndEveryRank) {
  // Saves in the background need a group of their own.
  ThreadGroupHub hub(kRanks);
  std::vector<std::unique_ptr<ThreadProcessGroup>> groups;
  for (int rank = 0; rank < kRanks; ++rank) {
    groups.push_back(std::make_unique<ThreadProcessGroup>(hub, rank));
  }
  const Run run = Train({.interval_steps = 1, .last_step = 1000}, nullptr,
                        [&](int rank, CheckpointManagerOptions& options) {
                          options.failures.max_failed_saves = 2;
                          options.background.emplace();
                          SaveOptions& save = options.background->save;
                          save.group = groups[rank].get();
                          save.timeout = absl::Seconds(20);
                          if (rank != 1) return;
                          save.before_commit = [] { return absl::DataLossError("no log"); };
                        });
  for (const absl::Status& end : run.ends) {
    EXPECT_TRUE(absl::IsAborted(end)) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("2 saves in a row have failed"));
  }
  EXPECT_THAT(std::string(run.ends[0].message()), HasSubstr("rank 1: no log"));
}

TEST_F(CheckpointManagerTest, AJobThatDoesNotSaveEndsAllTheSame) {
  const Run run = Train({.saves = false, .interval_steps = 1, .last_step = 3});
  EXPECT_THAT(run.decisions, ElementsAre("3 last"));
  EXPECT_THAT(*storage_->List(""), IsEmpty());
}

// A save whose state is copied first, as from a device.
TEST_F(CheckpointManagerTest, AnAnnouncedSaveIsInFlight) {
  CheckpointManagerOptions options;
  options.background.emplace();
  const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
  ASSERT_OK_AND_ASSIGN(const auto manager,
                       CheckpointManager::Open(storage, nullptr, std::move(options)));
  EXPECT_FALSE(manager->save_in_flight());
  manager->Announce();
  EXPECT_TRUE(manager->save_in_flight());
  EXPECT_THAT(manager->Poll(), IsEmpty());
  manager->Refuse(7, absl::InternalError("a copy"));
  const std::vector<SaveOutcome> outcomes = manager->Finish();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].step, 7);
  EXPECT_FALSE(manager->save_in_flight());
  EXPECT_TRUE(absl::IsInternal(manager->last_save())) << manager->last_save();
}

}  // namespace
}  // namespace tessera::ckpt
