// Saves by several ranks: one fails, is late or disagrees, and the phases of each of them.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckpointRanksTest, OneRankThatFailsFailsAllByName) {
  for (int bad_rank = 0; bad_rank < 3; ++bad_rank) {
    MemoryStorage storage;
    FaultInjectingStorage faulty(storage);
    const bool overwrite = bad_rank > 0;
    std::vector<float> old(6, 7);
    const StateDict old_state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, old, {6})}};
    if (overwrite) ASSERT_OK(CheckpointFolder(storage).Save(1, old_state));
    const std::string file = absl::StrCat("model-0000", bad_rank + 1, "-of-00003-");
    faulty.FailWhere(
        [&](const Operation& o) {
          return o.kind == OperationKind::kWriteAt && o.path.find(file) != o.path.npos;
        },
        absl::ResourceExhaustedError("injected"));
    RunRanks(3, [&](ProcessGroup& group) {
      std::vector<float> values = {1, 2};
      StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {6})}};
      state.tensors[0].shards[0].box = {{2 * group.rank()}, {2}};
      SaveOptions options;
      options.overwrite = overwrite;
      options.timeout = absl::Seconds(20);
      const absl::Status status =
          CheckpointFolder(faulty).Save(1, state, On(group, options)).status();
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat("rank ", bad_rank)), HasSubstr("injected")));
    });
    if (overwrite) {
      old.assign(6, 0);
      ASSERT_OK(LoadCheckpoint(storage, StepDirectoryName(1), old_state));
      EXPECT_THAT(old, testing::Each(7));
      EXPECT_EQ(storage.List(StepDirectoryName(1))->size(), 2);
      continue;
    }
    EXPECT_TRUE(CheckpointFolder(storage).List()->empty());
    EXPECT_FALSE(storage.List(StepDirectoryName(1)).ok()) << "the room should be free again";
  }
}

TEST(CheckpointRanksTest, TheReportHasThePhasesOfEachRank) {
  MemoryStorage shared;
  RunRanks(3, [&](ProcessGroup& group) {
    FaultInjectingStorage storage(shared);
    if (group.rank() == 1) {
      storage.BeforeEach([](const Operation& operation) {
        if (operation.kind == OperationKind::kSync) absl::SleepFor(absl::Milliseconds(30));
      });
    }
    std::vector<float> values(1000);
    StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {3000})}};
    state.tensors[0].shards[0].box = {{1000 * group.rank()}, {1000}};
    ASSERT_OK_AND_ASSIGN(const SaveReport report,
                         CheckpointFolder(storage).Save(1, state, {.group = &group}));
    ASSERT_EQ(report.ranks.size(), group.rank() == 0 ? 3 : 0);
    for (const SavePhases& rank : report.ranks) {
      EXPECT_GT(rank.planning, absl::ZeroDuration());
      EXPECT_GT(rank.copying, absl::ZeroDuration());
      EXPECT_GT(rank.writing, absl::ZeroDuration());
      const absl::Duration sum = rank.planning + rank.copying + rank.writing + rank.syncing;
      EXPECT_LE(sum, rank.duration + absl::Microseconds(1));
    }
    if (group.rank() == 0) EXPECT_GE(report.ranks[1].syncing, absl::Milliseconds(30));
  });
}

TEST(CheckpointRanksTest, ALateRankIsNamed) {
  MemoryStorage shared;
  RunRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return;  // never takes part
    std::vector<float> values = {1};
    SaveOptions options;
    options.timeout = absl::Milliseconds(50);
    const absl::Status status =
        CheckpointFolder(shared)
            .Save(1, {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1})}},
                  On(group, options))
            .status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("1"));
  });
}

TEST(CheckpointRanksTest, RanksThatDisagreeAreNamed) {
  MemoryStorage shared;
  RunRanks(2, [&](ProcessGroup& group) {
    std::vector<float> values(4);
    const Shape shape = group.rank() == 0 ? Shape{4} : Shape{2, 2};
    const absl::Status status =
        CheckpointFolder(shared)
            .Save(1, {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, shape)}},
                  {.group = &group})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("tensor x: rank 0 has WEIGHT F32 [4]"),
                      HasSubstr("rank 1 has WEIGHT F32 [2,2]")));
    const absl::Status steps =
        CheckpointFolder(shared)
            .Save(group.rank(), {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {4})}},
                  {.group = &group})
            .status();
    EXPECT_THAT(std::string(steps.message()), HasSubstr("rank 0 saves step 0, rank 1 step 1"));
  });
  EXPECT_TRUE(shared.List("")->empty());
}

}  // namespace
}  // namespace tessera::ckpt
