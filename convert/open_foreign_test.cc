#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "convert/source_place.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<std::pair<int64_t, std::string>> StepFoldersAmong(
    const std::vector<std::string>& names) {
  MemoryStorage storage;
  for (const std::string& name : names) EXPECT_OK(storage.MakeDirectory(name));
  EXPECT_OK(WriteAll(storage, "checkpoint-99", "a file"));
  const auto folders = OrFail(ListStepFolders(storage));
  std::vector<std::pair<int64_t, std::string>> found;
  for (const StepFolder& folder : folders) found.emplace_back(folder.step, folder.name);
  return found;
}

TEST(StepFoldersTest, TheNewestIsFirstByItsNumber) {
  EXPECT_THAT(
      StepFoldersAmong({"checkpoint-9", "checkpoint-10", "checkpoint-100"}),
      ElementsAre(Pair(100, "checkpoint-100"), Pair(10, "checkpoint-10"), Pair(9, "checkpoint-9")));
}

TEST(StepFoldersTest, EveryFrameworksNames) {
  EXPECT_THAT(StepFoldersAmong({"checkpoint-7", "checkpoint_step_000006", "global_step5",
                                "iter_0000004", "step-3", "step_2", "1"}),
              ElementsAre(Pair(7, "checkpoint-7"), Pair(6, "checkpoint_step_000006"),
                          Pair(5, "global_step5"), Pair(4, "iter_0000004"), Pair(3, "step-3"),
                          Pair(2, "step_2"), Pair(1, "1")));
}

// Parts of one checkpoint, other folders, and numbers that no step has.
TEST(StepFoldersTest, OtherFoldersAreNone) {
  EXPECT_THAT(StepFoldersAmong({"mp_rank_01", "tensor_3", "runs", "checkpoint-", "checkpoint-5.tmp",
                                "checkpoint--5", "checkpoint-+5", "global_step5_universal",
                                "step-99999999999999999999"}),
              ElementsAre());
}

// What cannot be looked for is not called missing.
TEST(DescribeContentsTest, OnlyWhatIsNotThereIsMissing) {
  MemoryStorage memory;
  EXPECT_OK(WriteAll(memory, "__0_0.distcp", ""));
  EXPECT_OK(memory.MakeDirectory("step-00000003"));
  FaultInjectingStorage folder(memory);
  EXPECT_THAT(DescribeContents(folder), AllOf(HasSubstr(".metadata, the index of"),
                                              HasSubstr("step-00000003 has no manifest")));
  folder.FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kOpen; },
      absl::UnavailableError("broken on purpose"));
  EXPECT_EQ(DescribeContents(folder), "it holds __0_0.distcp, step-00000003/");
}

TEST(DescribeContentsTest, OtherFormatsHaveTheirNames) {
  EXPECT_EQ(DescribeFile("a/b.tar"), "");
  EXPECT_THAT(DescribeFile("a/model.npz"), HasSubstr("; model.npz is of numpy, which is not read"));
  MemoryStorage folder;
  EXPECT_OK(WriteAll(folder, "checkpoint", ""));
  EXPECT_OK(WriteAll(folder, "model.ckpt-7.data-00000-of-00002", ""));
  EXPECT_THAT(DescribeContents(folder), HasSubstr("data-00000-of-00002 is of TensorFlow"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
