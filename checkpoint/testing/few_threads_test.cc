// A system that permits few more threads, or none: everything works with the available ones.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/testing.h"
#include "base/threads.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/reshard/rewrite.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

constexpr char kDirectory[] = "step-00000001";

// The parameter is the number of additional threads, not counting the ranks themselves.
class FewThreadsTest : public testing::TestWithParam<int> {
 protected:
  FewThreadsTest() {
    std::mt19937_64 random(1);
    tensors_.push_back(RandomTensor("w", TensorRole::kWeight, DType::kF32, {60, 50}, random));
    tensors_.push_back(
        RandomTensor("m", TensorRole::kOptimizerState, DType::kF32, {60, 50}, random));
    tensors_.push_back(RandomTensor("alone", TensorRole::kWeight, DType::kF32, {60, 50}, random));
    options_.checksum_chunk_bytes = 256;
    LimitThreads(GetParam());
  }
  ~FewThreadsTest() override { LimitThreads(-1); }

  void SaveByTwo() {
    RunRanks(2, [&](ProcessGroup& group) {
      const LocalState state = RowsOf(tensors_, group.rank(), 2, true);
      ASSERT_OK(CheckpointFolder(storage_).Save(1, state.dict, On(group, options_)));
    });
  }

  void ExpectHeld(const LocalState& state) {
    for (size_t t = 0; t < state.dict.tensors.size(); ++t) {
      EXPECT_TRUE(LocalState::Holds(state.dict.tensors[t].shards[0], tensors_[t])) << t;
    }
  }

  MemoryStorage storage_;
  std::vector<WholeTensor> tensors_;
  SaveOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Threads, FewThreadsTest, testing::Values(0, 1, 2, 5));

TEST_P(FewThreadsTest, SavesAndVerifies) {
  SaveByTwo();
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(storage_, kDirectory, {.digests = true, .io_threads = 4}));
  EXPECT_TRUE(verified.damage.empty());
}

TEST_P(FewThreadsTest, LoadsAlone) {
  SaveByTwo();
  LimitThreads(GetParam());
  SingleProcessGroup group;
  LocalState state = RowsOf(tensors_, 0, 1, false);
  ASSERT_OK_AND_ASSIGN(
      const auto loaded,
      LoadCheckpoint(storage_, kDirectory, state.dict, {.group = &group, .verify_digests = true}));
  ExpectHeld(state);
}

// All ranks want the first tensors, and share their reads. The last one is read by one rank for
// itself.
TEST_P(FewThreadsTest, LoadsTogether) {
  SaveByTwo();
  LimitThreads(GetParam());
  RunRanks(3, [&](ProcessGroup& group) {
    LocalState state = RowsOf(tensors_, 0, 1, false);
    if (group.rank() != 1) state.dict.tensors.pop_back();
    LoadOptions options;
    options.staging_bytes = 1;  // the minimum: a buffer of each kind
    ASSERT_OK_AND_ASSIGN(const auto loaded,
                         LoadCheckpoint(storage_, kDirectory, state.dict, On(group, options)));
    EXPECT_GT(loaded.bytes_received, 0);
    ExpectHeld(state);
  });
}

TEST_P(FewThreadsTest, SavesBehindTheProgramOrInTheForeground) {
  RunRanks(2, [&](ProcessGroup& group) {
    const LocalState state = RowsOf(tensors_, group.rank(), 2, true);
    AsyncSaver saver(storage_, {.save = On(group, options_)});
    saver.Prepare(state.dict);
    for (const int64_t step : {1, 2}) {
      saver.Start(step, state.dict);
      saver.WaitUntilAllCopied();
    }
    const std::vector<SaveOutcome> outcomes = saver.Finish();
    ASSERT_EQ(outcomes.size(), 2);
    for (const SaveOutcome& outcome : outcomes) {
      ASSERT_OK(outcome.report);
      if (GetParam() == 0) {
        EXPECT_THAT(outcome.report->note, HasSubstr("saved in the foreground: cannot start"));
        EXPECT_EQ(outcome.report->blocked, outcome.report->duration);
      }
      if (GetParam() >= 2) EXPECT_EQ(outcome.report->note, "");
    }
  });
  EXPECT_EQ(CheckpointFolder(storage_).List()->size(), 2);
}

TEST_P(FewThreadsTest, Rewrites) {
  SaveByTwo();
  LimitThreads(GetParam());
  const Checkpoint saved = *Checkpoint::Open(storage_, kDirectory);
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(DescribeState(RowsOf(tensors_, rank, 3, false).dict).SerializeAsString());
  }
  ASSERT_OK_AND_ASSIGN(const auto plan, PlanSave(ranks, {.checksum_chunk_bytes = 256}));
  MemoryStorage target;
  Manifest metadata;
  metadata.mutable_trainer()->set_step(1);
  ASSERT_OK_AND_ASSIGN(
      const auto report,
      Rewrite(saved, {ranks, plan}, target, "", metadata,
              {.memory_bytes = LeastRewriteMemory(saved.manifest(), plan.manifest)}));
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(target, kDirectory, {.digests = true, .io_threads = 4}));
  EXPECT_TRUE(verified.damage.empty());
}

}  // namespace
}  // namespace tessera::ckpt
