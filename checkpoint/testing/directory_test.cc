// Other entries in a folder of checkpoints: links, and directories that cannot be read.

#include "checkpoint/directory/directory.h"

#include <filesystem>
#include <fstream>

#include "base/testing.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void MustSave(Storage& storage, int64_t step) {
  std::vector<float> value = {1};
  ASSERT_OK_AND_ASSIGN(const auto report, CheckpointFolder(storage).Save(step, OneTensor(value)));
}

class DirectoryTest : public testing::Test {
 protected:
  MemoryStorage storage_;
};

// One bad directory prevents neither listing nor pruning, and is never deleted.
TEST_F(DirectoryTest, AnUnreadableDirectoryIsSkippedAndNamed) {
  FaultInjectingStorage faulty(storage_);
  for (const int64_t step : {1, 2, 3, 4}) MustSave(storage_, step);
  for (const absl::Status& error :
       {absl::PermissionDeniedError("denied"), absl::UnavailableError("Input/output error")}) {
    faulty.ClearFaults();
    faulty.FailWhere(
        [](const Operation& operation) {
          return operation.kind == OperationKind::kList && operation.path == "step-00000001";
        },
        error);
    ASSERT_OK_AND_ASSIGN(const auto contents, CheckpointFolder(faulty).ListAll());
    const auto& [list, uncommitted, unreadable] = contents;
    EXPECT_EQ(list.front().step, 2);
    ASSERT_EQ(unreadable.size(), 1);
    EXPECT_EQ(unreadable[0].directory, "step-00000001");
    EXPECT_EQ(unreadable[0].step, 1);
    EXPECT_EQ(unreadable[0].readable.code(), error.code());
    EXPECT_THAT(std::string(unreadable[0].readable.message()), HasSubstr("List step-00000001"));
    EXPECT_TRUE(uncommitted.empty());
    ASSERT_OK(CheckpointFolder(faulty).Prune(static_cast<int>(list.size()) - 1));
    EXPECT_EQ(CheckpointFolder(faulty).List()->size(), list.size() - 1);
    MustSave(storage_, 2);
  }
  EXPECT_EQ(CheckpointFolder(storage_).List()->front().step, 1);
}

// Whatever is damaged, as many are kept that can be loaded.
TEST_F(DirectoryTest, PruningDoesNotCountDamagedCheckpoints) {
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) MustSave(storage_, step);
  const auto data_file = [&](const std::string& dir) {
    const std::vector<std::string> names = storage_.List(dir).value();
    for (const std::string& name : names) {
      if (name != "manifest.pb") return dir + "/" + name;
    }
    return std::string();
  };
  ASSERT_OK(storage_.Delete(data_file("step-00000006")));
  ASSERT_OK(WriteAll(storage_, data_file("step-00000005"), "short"));
  ASSERT_OK(WriteAll(storage_, "step-00000003/manifest.pb", "garbage"));
  FaultInjectingStorage faulty(storage_);
  faulty.FailWhere(
      [](const Operation& operation) { return operation.path == "step-00000004/manifest.pb"; },
      absl::PermissionDeniedError("denied"));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckpointFolder(faulty).Prune(3)));
  EXPECT_EQ(CheckpointFolder(storage_).List()->size(), 6);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckpointFolder(faulty).Prune(1)));
  EXPECT_EQ(CheckpointFolder(storage_).List()->front().step, 2);
  ASSERT_OK(CheckpointFolder(storage_).Prune(1));
  EXPECT_THAT(*storage_.List(""),
              ElementsAre("step-00000004/", "step-00000005/", "step-00000006/"));
}

// A save later than the newest committed one may still be committed.
TEST_F(DirectoryTest, PruningLeavesLaterIncompleteSavesAlone) {
  for (const int64_t step : {1, 2, 3, 4, 5}) MustSave(storage_, step);
  for (const char* const dir : {"step-00000001", "step-00000004", "step-00000005"}) {
    ASSERT_OK(storage_.Delete(std::string(dir) + "/manifest.pb"));
  }
  ASSERT_OK(CheckpointFolder(storage_).Prune(1));
  EXPECT_THAT(*storage_.List(""),
              ElementsAre("step-00000003/", "step-00000004/", "step-00000005/"));
}

// An entry that cannot be deleted does not prevent the deletion of others.
TEST_F(DirectoryTest, PruningGoesOnAfterAnError) {
  for (const int64_t step : {1, 2, 3}) MustSave(storage_, step);
  FaultInjectingStorage faulty(storage_);
  faulty.FailWhere(
      [](const Operation& operation) { return operation.path == "step-00000001/manifest.pb"; },
      absl::PermissionDeniedError("denied"));
  EXPECT_TRUE(absl::IsPermissionDenied(CheckpointFolder(faulty).Prune(1)));
  ASSERT_EQ(CheckpointFolder(storage_).List()->size(), 2);
  EXPECT_EQ(CheckpointFolder(storage_).List()->back().step, 3);
}

// A discard that was interrupted leaves a directory under the name that it was given.
TEST_F(DirectoryTest, PruningSettlesWhatAnInterruptedDiscardLeft) {
  for (const int64_t step : {1, 2, 3}) MustSave(storage_, step);
  ASSERT_OK(storage_.Rename("step-00000003", "step-00000003.discarded-0000abcd"));
  ASSERT_OK(storage_.Rename("step-00000001", "step-00000009.discarded-0000abcd"));
  ASSERT_OK(storage_.Delete("step-00000009.discarded-0000abcd/manifest.pb"));
  ASSERT_OK(CheckpointFolder(storage_).Prune(2));
  EXPECT_THAT(*storage_.List(""), ElementsAre("step-00000002/", "step-00000003/"));
}

TEST(DirectoryLinksTest, PruningLeavesLinksAndWhatTheyLeadToAlone) {
  const TestFolder archive, runs;
  MustSave(**OpenPosixStorage(archive.path()), 500);
  std::filesystem::create_directory(archive.path() + "/half");
  std::ofstream(archive.path() + "/half/model.safetensors") << "x";
  std::filesystem::create_symlink(archive.path() + "/step-00000500",
                                  runs.path() + "/step-00000500");
  std::filesystem::create_symlink(archive.path() + "/half", runs.path() + "/step-00000501");
  const auto storage = *OpenPosixStorage(runs.path());
  for (const int64_t step : {600, 700, 800}) MustSave(*storage, step);
  EXPECT_EQ(CheckpointFolder(*storage).List()->size(), 4);
  ASSERT_OK(CheckpointFolder(*storage).Prune(2));
  std::vector<int64_t> steps;
  const auto left = CheckpointFolder(*storage).List();
  for (const CheckpointInfo& info : *left) steps.push_back(info.step);
  EXPECT_THAT(steps, ElementsAre(500, 700, 800));
  EXPECT_TRUE(std::filesystem::is_symlink(runs.path() + "/step-00000501"));
  EXPECT_TRUE(std::filesystem::exists(archive.path() + "/half/model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(**OpenPosixStorage(archive.path()), "step-00000500",
                                        {.digests = true, .io_threads = /*io_threads=*/1}));
  EXPECT_TRUE(verified.damage.empty());
}

}  // namespace
}  // namespace tessera::ckpt
