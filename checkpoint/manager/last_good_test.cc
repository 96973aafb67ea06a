// What a job says and does between its saves never costs it the last good checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/testing/test_state.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

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

}  // namespace
}  // namespace tessera::ckpt
