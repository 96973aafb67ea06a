// A caller that ends a save, a load or a verification: the call returns Cancelled on every rank, no
// file is left of a save, and the next call works.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
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

  // Saves by two ranks, of which rank 1 is cancelled.
  void SaveByTwo(int64_t step, std::function<bool()> is_cancelled, absl::StatusCode expected) {
    RunRanks(2, [&](ProcessGroup& group) {
      const LocalState state = RowsOf(tensors_, group.rank(), 2, true);
      SaveOptions options;
      if (group.rank() == 1) options.is_cancelled = is_cancelled;
      const auto saved = CheckpointFolder(storage_).Save(step, state.dict, On(group, options));
      EXPECT_EQ(saved.status().code(), expected) << saved.status();
    });
  }

  MemoryStorage storage_;
  std::vector<WholeTensor> tensors_;
};

TEST_F(CancelledTest, ASaveLeavesNothingAndTheNextOneWorks) {
  for (const int calls : {0, 1, 2}) {
    SaveByTwo(1, After(calls), absl::StatusCode::kCancelled);
    EXPECT_TRUE(storage_.List("")->empty()) << calls;
  }
  SaveByTwo(1, nullptr, absl::StatusCode::kOk);
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
  SaveByTwo(1, nullptr, absl::StatusCode::kOk);
  for (const int calls : {0, 1}) {
    RunRanks(2, [&](ProcessGroup& group) {
      LocalState state = RowsOf(tensors_, 0, 1, false);  // both want everything
      LoadOptions options = {.group = &group};
      if (group.rank() == 1) options.is_cancelled = After(calls);
      const auto loaded = LoadCheckpoint(storage_, "step-00000001", state.dict, options);
      EXPECT_TRUE(absl::IsCancelled(loaded.status())) << loaded.status();
    });
  }
}

TEST_F(CancelledTest, AVerificationEndsWithoutDamage) {
  SaveByTwo(1, nullptr, absl::StatusCode::kOk);
  const auto verified = VerifyCheckpoint(storage_, "step-00000001", {.is_cancelled = After(1)});
  EXPECT_TRUE(absl::IsCancelled(verified.status())) << verified.status();
}

}  // namespace
}  // namespace tessera::ckpt
