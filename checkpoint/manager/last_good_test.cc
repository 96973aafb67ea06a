// What a job says and does between its saves never costs it the last good checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/is_waiting.h"
#include "base/testing.h"
#include "base/wall_clock_jump.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "storage/forwarding_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Holds up the files of a step until the job, which is this thread, waits in GoBack() or is back.
class HeldUpStorage final : public ForwardingStorage {
 public:
  HeldUpStorage(Storage& base, std::string step)
      : ForwardingStorage(base), step_(std::move(step)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    if (path.starts_with(step_)) {
      going_back_.WaitForNotification();
      while (!is_back_ && !IsWaiting(job_)) absl::SleepFor(absl::Milliseconds(1));
    }
    return ForwardingStorage::Create(path, size_hint_bytes);
  }
  absl::Status GoBack(const std::function<absl::Status()>& go_back) {
    going_back_.Notify();
    absl::Status status = go_back();
    is_back_ = true;
    return status;
  }

 private:
  const std::string step_;
  const pid_t job_ = gettid();
  absl::Notification going_back_;
  std::atomic<bool> is_back_ = false;
};

class LastGoodTest : public ::testing::Test {
 protected:
  static std::unique_ptr<CheckpointManager> Open(Storage& storage,
                                                 const CheckpointManagerOptions& options) {
    const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), &storage);
    return *CheckpointManager::Open(shared, nullptr, options);
  }
  // Makes the state that of a step, and ends it.
  absl::Status TrySave(CheckpointManager& manager, const StepState& now,
                       const Metadata& metadata = {}) {
    manager.WaitUntilAllCopied();
    weight_.assign(weight_.size(), static_cast<float>(now.step));
    return manager.TrySave(now, OneTensor(weight_), metadata).status();
  }
  static std::vector<int64_t> Steps(Storage& storage) {
    std::vector<int64_t> steps;
    const std::vector<CheckpointInfo> saved = *CheckpointFolder(storage).List();
    for (const CheckpointInfo& info : saved) steps.push_back(info.step);
    return steps;
  }

  std::vector<float> weight_ = std::vector<float>(300);
};

Metadata WithLoss(double validation_loss) {
  Manifest manifest;
  StateHealth& health = *manifest.mutable_trainer()->mutable_health();
  health.set_state_is_finite(true);
  health.set_loss_is_sane(true);
  health.set_validation_loss(validation_loss);
  return ToMetadata(std::move(manifest));
}

TEST_F(LastGoodTest, AStateThatTheJobCallsUnhealthyDoesNotReplaceAGoodOne) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    MemoryStorage memory;
    CheckpointManagerOptions options;
    if (in_background) options.background.emplace();
    options.schedule = {.interval_steps = 4, .last_step = 6};
    options.keep.newest = 1;
    {
      const auto manager = Open(memory, options);
      for (int64_t step = 1; step <= 6; ++step) {
        ASSERT_OK(TrySave(*manager, {.step = step, .healthy = step < 6}));
      }
    }
    EXPECT_THAT(Steps(memory), ElementsAre(4, 6));
    const auto next = Open(memory, options);
    ASSERT_OK_AND_ASSIGN(const ResumeResult resumed, next->TryResume(OneTensor(weight_)));
    ASSERT_TRUE(resumed.checkpoint.has_value());
    EXPECT_EQ(resumed.checkpoint->step(), 4);
    EXPECT_THAT(weight_, Each(4));
    ASSERT_EQ(resumed.skipped.size(), 1u);
    EXPECT_EQ(resumed.skipped[0].word, "diverged");
    // A program that knows more says so itself.
    ASSERT_OK(TrySave(*next, {.step = 6, .healthy = false}, WithLoss(1)));
    EXPECT_THAT(Steps(memory), ElementsAre(6));
  }
}

// The disk has room for the newest checkpoint and the one that is being written.
TEST_F(LastGoodTest, TheCheckpointBeforeTheNewestStaysUntilALaterStepIsHealthy) {
  weight_.resize(100'000);
  MemoryStorage scratch;
  FaultInjectingStorage measured(scratch);
  measured.SetDiskBytes(1 << 20);
  ASSERT_OK(CheckpointFolder(measured).Save(2, OneTensor(weight_)));
  const uint64_t one = (1 << 20) - *measured.FreeBytes();
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    MemoryStorage memory;
    FaultInjectingStorage storage(memory);
    storage.SetDiskBytes(2 * one + one / 2);
    CheckpointManagerOptions options;
    if (in_background) options.background.emplace();
    options.schedule.interval_steps = 2;
    options.keep = {.newest = 1, .awaits_healthy_step = true};
    auto manager = Open(storage, options);
    // Ends a step, and a save in the background, too.
    const auto end_step = [&](const StepState& now) {
      EXPECT_OK(TrySave(*manager, now));
      for (const SaveOutcome& outcome : manager->Finish()) {
        EXPECT_EQ(OrFail(outcome.report).note, "") << now.step;
      }
      return Steps(memory);
    };
    EXPECT_THAT(end_step({.step = 2}), ElementsAre(2));
    EXPECT_THAT(end_step({.step = 4}), ElementsAre(2, 4));
    EXPECT_THAT(end_step({.step = 5}), ElementsAre(2, 4));
    EXPECT_THAT(end_step({.step = 6}), ElementsAre(4, 6));
    for (const int64_t step : {7, 8}) {
      EXPECT_THAT(end_step({.step = step, .healthy = false}), ElementsAre(4, 6));
    }
    manager = nullptr;
    manager = Open(storage, options);
    ASSERT_OK_AND_ASSIGN(const ResumeResult resumed, manager->TryResume(OneTensor(weight_)));
    EXPECT_EQ(resumed.checkpoint->step(), 6);
    EXPECT_THAT(end_step({.step = 7, .healthy = false}), ElementsAre(4, 6));
    EXPECT_THAT(end_step({.step = 8}), ElementsAre(6, 8));
    // At the end of the job even a state is saved that is not healthy.
    storage.SetDiskBytes(4 * one);
    EXPECT_THAT(end_step({.step = 9, .program_ends = true, .healthy = false}),
                ElementsAre(6, 8, 9));
    // A job that goes back has healthy steps before it only.
    for (const int64_t step : {10, 11}) {
      EXPECT_THAT(end_step({.step = step}), ElementsAre(8, 10));
    }
    ASSERT_OK(manager->TryResume(OneTensor(weight_), {.step = 10}));
    EXPECT_THAT(end_step({.step = 11, .program_ends = true, .healthy = false}),
                ElementsAre(8, 10, 11));
  }
}

// While a save is in flight, a later step is healthy.
TEST_F(LastGoodTest, TheCommitOfAProvenCheckpointDeletesTheOneBeforeIt) {
  MemoryStorage memory;
  CheckpointManagerOptions options;
  std::atomic<bool> holds = false;
  absl::Notification commits;
  options.background.emplace().save.before_commit = [&] {
    if (holds) commits.WaitForNotification();
    return absl::OkStatus();
  };
  options.schedule.interval_steps = 2;
  options.keep = {.newest = 1, .awaits_healthy_step = true};
  const auto manager = Open(memory, options);
  ASSERT_OK(TrySave(*manager, {.step = 2}));
  manager->Finish();
  holds = true;
  for (const int64_t step : {4, 5}) ASSERT_OK(TrySave(*manager, {.step = step}));
  EXPECT_THAT(Steps(memory), ElementsAre(2));
  commits.Notify();
  manager->Finish();
  EXPECT_THAT(Steps(memory), ElementsAre(4));
}

// The job goes back while the save of a later step is in flight.
TEST_F(LastGoodTest, ASaveInFlightIsOverBeforeTheJobGoesBack) {
  using GoBack = std::function<absl::Status(CheckpointManager&)>;
  const std::vector<std::pair<const char*, GoBack>> ways = {
      {"loads into the state",
       [&](CheckpointManager& manager) {
         return manager.TryResume(OneTensor(weight_), {.step = 5}).status();
       }},
      {"loads by itself",
       [&](CheckpointManager& manager) {
         const auto load = [&](const Checkpoint& checkpoint) {
           return checkpoint.Load(OneTensor(weight_)).status();
         };
         return manager.TryResume(load, {.step = 5}).status();
       }},
      {"abandons", [&](CheckpointManager& manager) { return manager.AbandonLater(5).status(); }},
  };
  for (const auto& [how, go_back] : ways) {
    SCOPED_TRACE(how);
    MemoryStorage memory;
    HeldUpStorage storage(memory, "step-00000006");
    CheckpointManagerOptions options;
    options.background.emplace();
    options.schedule.interval_steps = 1;
    const auto manager = Open(storage, options);
    ASSERT_OK(TrySave(*manager, {.step = 5}));
    manager->Finish();
    ASSERT_OK(TrySave(*manager, {.step = 6}));
    ASSERT_OK(storage.GoBack([&, &way = go_back] { return way(*manager); }));
    const std::vector<SaveOutcome> outcomes = manager->Finish();
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_OK(outcomes[0].report);
    EXPECT_EQ(CheckpointFolder(memory).FindLatest()->checkpoint.step, 5);
    std::vector<float> abandoned(300);
    ASSERT_OK(LoadCheckpoint(memory, "step-00000006.abandoned", OneTensor(abandoned)));
    EXPECT_THAT(abandoned, Each(6));
  }
}

TEST_F(LastGoodTest, AStepThatIsSavedAgainIsJudgedAgain) {
  MemoryStorage memory;
  CheckpointManagerOptions options;
  options.schedule.interval_steps = 1;
  options.keep = {.newest = 1, .best = 1};
  const auto manager = Open(memory, options);
  ASSERT_OK(TrySave(*manager, {.step = 5}, WithLoss(2)));
  ASSERT_OK(TrySave(*manager, {.step = 6}, WithLoss(3)));
  EXPECT_THAT(Steps(memory), ElementsAre(5, 6));
  ASSERT_OK(manager->TryResume(OneTensor(weight_), {.step = 5}));
  ASSERT_OK(TrySave(*manager, {.step = 6}, WithLoss(1)));
  ASSERT_OK(TrySave(*manager, {.step = 7}, WithLoss(4)));
  EXPECT_THAT(Steps(memory), ElementsAre(6, 7));
}

// Counts the files that are opened in the slot that is not written.
class CountingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    if (path.starts_with(slot)) ++opened;
    return ForwardingStorage::Open(path);
  }

  std::string slot;
  int opened = 0;
};

// A look at each file of the other slot would hold up all ranks.
TEST_F(LastGoodTest, AJobReadsNoRollingCheckpointThatItHasCommittedOrLoaded) {
  MemoryStorage memory;
  CountingStorage storage(memory);
  CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 100, .rolling_interval_steps = 1};
  Manifest diverged;
  diverged.mutable_trainer()->mutable_health()->set_state_is_finite(true);
  const auto save = [&](CheckpointManager& manager, int64_t step, const Metadata& metadata = {}) {
    storage.slot = absl::StrCat("rolling-", step % 2);
    storage.opened = 0;
    ASSERT_OK(TrySave(manager, {.step = step}, metadata));
  };
  {
    const auto manager = Open(storage, options);
    for (const int64_t step : {1, 2, 3, 4}) {
      save(*manager, step);
      EXPECT_EQ(storage.opened, 0) << step;
    }
  }
  {
    const auto next = Open(storage, options);
    ASSERT_OK(next->TryResume(OneTensor(weight_)));
    for (const int64_t step : {5, 6}) {
      save(*next, step);
      EXPECT_EQ(storage.opened, 0) << step;
    }
  }
  const auto loads_by_itself = Open(storage, options);
  loads_by_itself->Begin(6);
  save(*loads_by_itself, 7, ToMetadata(diverged));
  EXPECT_GT(storage.opened, 0) << "it may have been damaged since";
  save(*loads_by_itself, 8);
  EXPECT_GT(storage.opened, 0);
  const std::vector<CheckpointInfo> left = *ListForResume(memory);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].step, 8);
  EXPECT_EQ(left[1].step, 6) << "the last good one";
}

// Thousands of ranks have written as many files, of which each may take rank 0 as long as a save.
TEST_F(LastGoodTest, AJobLooksAtNoFilesThatItHasCommitted) {
  MemoryStorage memory;
  CountingStorage storage(memory);
  CheckpointManagerOptions options;
  options.schedule.interval_steps = 1;
  options.keep.newest = 3;
  const auto manager = Open(storage, options);
  for (int64_t step = 1; step <= 5; ++step) {
    storage.slot = absl::StrCat("step-0000000", step, "/model");
    storage.opened = 0;
    ASSERT_OK(TrySave(*manager, {.step = step}));
    EXPECT_EQ(storage.opened, 1) << "the rank that has written it looks at its size";
  }
  EXPECT_THAT(Steps(memory), ElementsAre(3, 4, 5));
}

TEST_F(LastGoodTest, AJobReadsNoRollingCheckpointThatIsOlderThanTheLoadedOne) {
  MemoryStorage memory;
  CountingStorage storage(memory);
  CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 4, .rolling_interval_steps = 1};
  {
    const auto manager = Open(storage, options);
    for (const int64_t step : {1, 2, 3, 4}) ASSERT_OK(TrySave(*manager, {.step = step}));
  }
  const auto next = Open(storage, options);
  ASSERT_OK_AND_ASSIGN(const ResumeResult resumed, next->TryResume(OneTensor(weight_)));
  ASSERT_TRUE(resumed.checkpoint.has_value());
  EXPECT_EQ(resumed.checkpoint->directory(), "step-00000004");
  storage.slot = "rolling-0";  // which has step 3, and stays
  storage.opened = 0;
  ASSERT_OK(TrySave(*next, {.step = 5}));
  EXPECT_EQ(storage.opened, 0);
  EXPECT_EQ(ListForResume(memory)->back().step, 3);
}

// The loaded checkpoint was the reason not to look at older ones.
TEST_F(LastGoodTest, AfterAbandoningTheLoadedOneTheGoodRollingCheckpointStays) {
  MemoryStorage memory;
  CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 8, .rolling_interval_steps = 1};
  Manifest diverged;
  diverged.mutable_trainer()->mutable_health()->set_state_is_finite(true);
  {
    const auto manager = Open(memory, options);
    ASSERT_OK(TrySave(*manager, {.step = 6}));
    ASSERT_OK(TrySave(*manager, {.step = 7}, ToMetadata(diverged)));
    ASSERT_OK(TrySave(*manager, {.step = 8}));
  }
  const auto next = Open(memory, options);
  ASSERT_OK_AND_ASSIGN(const ResumeResult resumed, next->TryResume(OneTensor(weight_)));
  ASSERT_TRUE(resumed.checkpoint.has_value());
  EXPECT_EQ(resumed.checkpoint->step(), 8);
  next->Begin(7);
  ASSERT_OK(next->AbandonLater(7));
  ASSERT_OK(TrySave(*next, {.step = 9}));
  const std::vector<CheckpointInfo> left = *ListForResume(memory);
  EXPECT_EQ(left.back().step, 6) << "the last good one";
}

// The program fills in fields of the manifest, but no time, or the time of an earlier save.
TEST_F(LastGoodTest, ACheckpointIsAsOldAsItsSave) {
  for (const int64_t created_unix_ms : {0, 1000}) {
    SCOPED_TRACE(created_unix_ms);
    MemoryStorage memory;
    CheckpointManagerOptions options;
    options.schedule.interval_steps = 1;
    options.keep = {.newest = 1, .within = absl::Hours(2)};
    const auto manager = Open(memory, options);
    Manifest manifest;
    manifest.mutable_topology()->set_tensor_parallel(1);
    manifest.mutable_producer()->set_created_unix_ms(created_unix_ms);
    const Metadata metadata = ToMetadata(std::move(manifest));
    for (const int64_t step : {1, 2}) ASSERT_OK(TrySave(*manager, {.step = step}, metadata));
    EXPECT_THAT(Steps(memory), ElementsAre(1, 2));
  }
}

// While a store does not answer, the memory of other hosts is all that a job can save to.
TEST(JobSavesTest, AReplicaWaitsForNoStore) {
  MemoryStorage store, replica;
  auto to_lock = std::make_unique<FaultInjectingStorage>(store);
  FaultInjectingStorage& asked = *to_lock;
  const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), &store);
  ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open(storage, std::move(to_lock), {}));
  asked.FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kReplace; },
      absl::UnavailableError("503"));
  suspended_s = 3600;  // the lease is old
  std::vector<float> weight(64);
  EXPECT_OK(SaveNow(replica, {.step = 1}, OneTensor(weight), {},
                    {.may_commit = [&] { return manager->CheckFolder(); }}));
  const absl::Status saved = manager->Save({.step = 1}, OneTensor(weight));
  EXPECT_TRUE(absl::IsUnavailable(saved)) << saved;
  suspended_s = 0;
}

}  // namespace
}  // namespace tessera::ckpt
