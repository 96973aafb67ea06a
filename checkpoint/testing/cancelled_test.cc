// A caller that ends a save, a load or a verification, or whose functions throw: the call returns
// Cancelled, or Internal, on every rank, no file is left of a save, and the next call works, also
// on the same group.

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

class CancelledTest : public testing::Test {
 protected:
  CancelledTest() {
    std::mt19937_64 random(1);
    // Large enough for several pieces on every rank.
    for (const char* const name : {"a", "b"}) {
      tensors_.push_back(
          RandomTensor(name, TensorRole::kWeight, DType::kF32, {3000, 1000}, random));
    }
  }

  // A function that asks for the end when it has been called `calls` times.
  static std::function<bool()> After(int calls) {
    return [calls, count = std::make_shared<std::atomic<int>>(0)] { return ++*count > calls; };
  }

  // Saves by two ranks, of which rank 1 has these functions.
  void SaveByTwo(const SaveOptions& of_rank_1, absl::StatusCode expected) {
    MemoryStorage next;
    RunRanks(2, [&](ProcessGroup& group) {
      const LocalState state = RowsOf(tensors_, group.rank(), 2, true);
      const SaveOptions options = group.rank() == 1 ? of_rank_1 : SaveOptions();
      const auto saved = CheckpointFolder(storage_).Save(1, state.dict, On(group, options));
      EXPECT_EQ(saved.status().code(), expected) << saved.status();
      EXPECT_OK(CheckpointFolder(next).Save(2, state.dict, On(group, SaveOptions())));
    });
  }

  // Loads on two ranks, both of which want everything. Rank 1 has these functions.
  void LoadByTwo(const LoadOptions& of_rank_1, absl::StatusCode expected) {
    RunRanks(2, [&](ProcessGroup& group) {
      LocalState state = RowsOf(tensors_, 0, 1, false);
      LoadOptions options = group.rank() == 1 ? of_rank_1 : LoadOptions();
      options.group = &group;
      const auto loaded = LoadCheckpoint(storage_, "step-00000001", state.dict, options);
      EXPECT_EQ(loaded.status().code(), expected) << loaded.status();
      EXPECT_OK(LoadCheckpoint(storage_, "step-00000001", state.dict, {.group = &group}));
    });
  }

  MemoryStorage storage_;
  std::vector<WholeTensor> tensors_;
};

TEST_F(CancelledTest, ASaveLeavesNothingAndTheNextOneWorks) {
  for (const int calls : {0, 1, 2}) {
    SaveByTwo({.is_cancelled = After(calls)}, absl::StatusCode::kCancelled);
    EXPECT_TRUE(storage_.List("")->empty()) << calls;
  }
  SaveByTwo({}, absl::StatusCode::kOk);
}

TEST_F(CancelledTest, ASaveInTheBackgroundReleasesTheState) {
  const LocalState state = RowsOf(tensors_);
  std::atomic<bool> cancelled = true;
  AsyncSaveOptions options;
  options.save.is_cancelled = [&] { return cancelled.load(); };
  AsyncSaver saver(storage_, options);
  saver.Start({.step = 1}, state.dict);
  saver.WaitUntilAllCopied();
  std::vector<SaveOutcome> outcomes = saver.Finish();
  ASSERT_EQ(outcomes.size(), 1);
  EXPECT_TRUE(absl::IsCancelled(outcomes[0].report.status())) << outcomes[0].report.status();
  EXPECT_TRUE(storage_.List("")->empty());
  cancelled = false;
  saver.Start({.step = 2}, state.dict);
  outcomes = saver.Finish();
  ASSERT_EQ(outcomes.size(), 1);
  EXPECT_OK(outcomes[0].report);
}

TEST_F(CancelledTest, ALoadEndsOnEveryRank) {
  SaveByTwo({}, absl::StatusCode::kOk);
  for (const int calls : {0, 1}) {
    LoadByTwo({.is_cancelled = After(calls)}, absl::StatusCode::kCancelled);
  }
}

TEST_F(CancelledTest, AVerificationEndsWithoutDamage) {
  SaveByTwo({}, absl::StatusCode::kOk);
  const auto verified = VerifyCheckpoint(storage_, "step-00000001", {.is_cancelled = After(1)});
  EXPECT_TRUE(absl::IsCancelled(verified.status())) << verified.status();
}

const auto kProgressThrows = [](uint64_t, uint64_t) { throw std::runtime_error("mine"); };
const auto kThrows = []() -> bool { throw std::runtime_error("mine"); };
const auto kCommitThrows = []() -> absl::Status { throw std::runtime_error("mine"); };

TEST_F(CancelledTest, AFunctionThatThrowsFailsTheSaveOnEveryRank) {
  tensors_.pop_back();
  for (const int threads : {1, 4}) {
    for (const SaveOptions& options :
         {SaveOptions{.io_threads = threads, .progress = kProgressThrows},
          SaveOptions{.io_threads = threads, .is_cancelled = kThrows},
          SaveOptions{.io_threads = threads, .before_commit = kCommitThrows}}) {
      SaveByTwo(options, absl::StatusCode::kInternal);
      EXPECT_TRUE(storage_.List("")->empty());
    }
  }
  const LocalState state = RowsOf(tensors_);
  AsyncSaver saver(storage_, {.save = {.progress = kProgressThrows}});
  saver.Start({.step = 1}, state.dict);
  saver.WaitUntilAllCopied();
  const std::vector<SaveOutcome> outcomes = saver.Finish();
  ASSERT_EQ(outcomes.size(), 1);
  EXPECT_THAT(std::string(outcomes[0].report.status().message()),
              testing::HasSubstr("an exception was thrown: mine"));
  EXPECT_TRUE(storage_.List("")->empty());
  SaveByTwo({}, absl::StatusCode::kOk);
}

// The checkpoint is committed, and the job continues.
TEST_F(CancelledTest, AFunctionOfAJobThatThrowsDoesNotEndIt) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/stop") << "no number, which is worth a note";
  for (const bool in_background : {false, true}) {
    MemoryStorage storage;
    CheckpointManagerOptions options;
    if (in_background) options.background.emplace();
    options.schedule.continuous = true;
    options.on_commit = [](const SaveReport&) { throw std::runtime_error("mine"); };
    options.notes = [](const std::string&) { throw std::runtime_error("mine"); };
    options.stop_file_path = folder.path() + "/stop";
    const std::shared_ptr<Storage> borrowed(std::shared_ptr<Storage>(), &storage);
    ASSERT_OK_AND_ASSIGN(const auto manager, CheckpointManager::Open(borrowed, nullptr, options));
    const GiveStateToSave throws = []() -> absl::StatusOr<StateToSave> {
      throw std::runtime_error("mine");
    };
    std::vector<float> weight(8);
    EXPECT_TRUE(absl::IsInternal(manager->TrySave({.step = 1}, throws).status()));
    manager->Finish();
    for (const int64_t step : {2, 3}) {
      ASSERT_OK_AND_ASSIGN(const auto decision,
                           manager->TrySave({.step = step}, OneTensor(weight)));
      EXPECT_EQ(decision.save, SaveKind::kPermanent);
      const std::vector<SaveOutcome> outcomes = manager->Finish();
      ASSERT_EQ(outcomes.size(), 1);
      ASSERT_OK(outcomes[0].report);
      EXPECT_EQ(outcomes[0].report->note,
                "cannot report the commit: an exception was thrown: mine");
    }
    const LoadOnThisRank load = [](const Checkpoint&) -> absl::Status {
      throw std::runtime_error("mine");
    };
    EXPECT_TRUE(absl::IsInternal(manager->TryResume(load).status()));
  }
}

TEST_F(CancelledTest, AStateThatOneRankCannotDescribeIsSavedByNone) {
  tensors_.pop_back();
  for (const bool in_background : {false, true}) {
    MemoryStorage storage;
    ThreadGroupHub hub(2);
    RunRanks(2, [&](ProcessGroup& group) {
      ThreadProcessGroup saving(hub, group.rank());
      CheckpointManagerOptions options;
      options.save.group = &group;
      options.save.timeout = absl::Minutes(1);
      if (in_background) options.background.emplace().save.group = &saving;
      options.schedule.continuous = true;
      const std::shared_ptr<Storage> borrowed(std::shared_ptr<Storage>(), &storage);
      ASSERT_OK_AND_ASSIGN(const auto manager, CheckpointManager::Open(borrowed, nullptr, options));
      const LocalState state = RowsOf(tensors_, group.rank(), 2, true);
      const Metadata metadata;
      const GiveStateToSave describe = [&]() -> absl::StatusOr<StateToSave> {
        if (group.rank() == 1) throw std::runtime_error("mine");
        return StateToSave{&state.dict, &metadata};
      };
      absl::Status refused = manager->TrySave({.step = 1}, describe).status();
      std::vector<SaveOutcome> outcomes = manager->Finish();
      if (in_background) refused = outcomes.at(0).report.status();
      EXPECT_TRUE(absl::IsInternal(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  testing::HasSubstr("cannot describe the state: an exception was thrown: mine"));
      ASSERT_OK_AND_ASSIGN(const auto decision, manager->TrySave({.step = 2}, state.dict));
      EXPECT_EQ(decision.save, SaveKind::kPermanent);
      outcomes = manager->Finish();
      ASSERT_EQ(outcomes.size(), 1);
      EXPECT_OK(outcomes[0].report);
    });
  }
}

TEST_F(CancelledTest, AFunctionThatThrowsFailsTheLoadOnEveryRankAndTheVerification) {
  tensors_.pop_back();
  SaveByTwo({}, absl::StatusCode::kOk);
  for (const int threads : {1, 4}) {
    LoadByTwo({.io_threads = threads, .progress = kProgressThrows}, absl::StatusCode::kInternal);
    LoadByTwo({.io_threads = threads, .is_cancelled = kThrows}, absl::StatusCode::kInternal);
    for (const VerifyOptions& options :
         {VerifyOptions{.io_threads = threads, .progress = kProgressThrows},
          VerifyOptions{.io_threads = threads, .is_cancelled = kThrows}}) {
      const auto verified = VerifyCheckpoint(storage_, "step-00000001", options);
      EXPECT_TRUE(absl::IsInternal(verified.status())) << verified.status();
    }
  }
  LoadByTwo({}, absl::StatusCode::kOk);
}

}  // namespace
}  // namespace tessera::ckpt
