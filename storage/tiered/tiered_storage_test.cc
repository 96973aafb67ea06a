#include "storage/tiered/tiered_storage.h"

#include <unistd.h>

#include <span>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"
#include "storage/testing/storage_conformance.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<StorageFixture> Fixtures() {
  struct Folders {
    TestFolder staging, remote;
    std::unique_ptr<Storage> storage;
  };
  return {
      {"Memory",
       [] {
         return std::make_shared<TieredStorage>(std::make_unique<MemoryStorage>(),
                                                std::make_unique<MemoryStorage>());
       }},
      {"Posix",
       []() -> std::shared_ptr<Storage> {
         auto folders = std::make_shared<Folders>();
         folders->storage = std::make_unique<TieredStorage>(
             *OpenPosixStorage(folders->staging.path()), *OpenPosixStorage(folders->remote.path()));
         return {folders, folders->storage.get()};
       },
       [](Storage& storage, const std::string& target, const std::string& link) {
         ASSERT_EQ(symlink(storage.Describe(target).c_str(), storage.Describe(link).c_str()), 0);
       }}};
}

INSTANTIATE_TEST_SUITE_P(Tiered, StorageConformance, testing::ValuesIn(Fixtures()),
                         StorageFixtureName);

// Two storages in memory, seen through a TieredStorage and directly.
class TieredStorageTest : public testing::Test {
 protected:
  TieredStorageTest() {
    auto staging = std::make_unique<FaultInjectingStorage>(staged_files_);
    auto remote = std::make_unique<FaultInjectingStorage>(remote_files_);
    staging_ = staging.get();
    remote_ = remote.get();
    storage_ = std::make_unique<TieredStorage>(std::move(staging), std::move(remote));
    EXPECT_OK(storage_->MakeDirectory("run/step-00000001"));
  }

  static std::string Get(Storage& storage, const std::string& path) {
    const auto contents = ReadAll(storage, path, 1 << 20);
    return contents.ok() ? *contents : "none";
  }
  // Paths that the remote storage was asked to read from.
  std::vector<std::string> RemoteReads() const {
    std::vector<std::string> paths;
    for (const Operation& operation : remote_->operations()) {
      if (operation.kind == OperationKind::kReadAt) paths.push_back(operation.path);
    }
    return paths;
  }

  MemoryStorage staged_files_, remote_files_;
  FaultInjectingStorage* staging_;
  FaultInjectingStorage* remote_;
  std::unique_ptr<TieredStorage> storage_;
  const std::string path_ = "run/step-00000001/data";
};

TEST_F(TieredStorageTest, WritesToTheStagingTierAndUploadsAtTheSync) {
  auto file = *storage_->Create(path_, 6);
  const std::string text = "abcdef";
  const auto bytes = std::as_bytes(std::span<const char>(text));
  ASSERT_OK(file->WriteAt(3, bytes.subspan(3)));
  ASSERT_OK(file->WriteAt(0, bytes.first(3)));
  EXPECT_EQ(Get(staged_files_, path_), text);
  EXPECT_EQ(Get(remote_files_, path_), "");
  ASSERT_OK(file->Sync());
  EXPECT_EQ(Get(remote_files_, path_), text);
  ASSERT_OK(file->Close());
}

TEST_F(TieredStorageTest, ReadsTheStagedCopyIfItHasTheRemoteFilesSize) {
  ASSERT_OK(WriteAll(*storage_, path_, "abc"));
  EXPECT_EQ(Get(*storage_, path_), "abc");
  EXPECT_THAT(RemoteReads(), IsEmpty());
  // A shorter one, whose bytes the staged copy has room for.
  ASSERT_OK(WriteAll(remote_files_, path_, "xy"));
  EXPECT_EQ(Get(*storage_, path_), "xy");
}

TEST_F(TieredStorageTest, ReadsTheRemoteFileWhereTheStagedOneFailsOrIsGone) {
  ASSERT_OK(WriteAll(*storage_, path_, "abc"));
  staging_->FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kReadAt; },
      absl::DataLossError("injected"));
  EXPECT_EQ(Get(*storage_, path_), "abc");
  EXPECT_THAT(RemoteReads(), ElementsAre(path_));
  ASSERT_OK(staged_files_.Delete(path_));
  EXPECT_EQ(Get(*storage_, path_), "abc");
}

// A file that is only in the staging tier does not exist: its upload was interrupted, or the remote
// file deleted.
TEST_F(TieredStorageTest, TheRemoteStorageDecidesWhatExists) {
  ASSERT_OK(WriteAll(*storage_, path_, "abc"));
  ASSERT_OK(remote_files_.Delete(path_));
  EXPECT_TRUE(absl::IsNotFound(storage_->Open(path_).status()));
  EXPECT_THAT(*storage_->List("run/step-00000001"), IsEmpty());
  ASSERT_OK(WriteAll(*storage_, "a", "abc"));
  ASSERT_OK(storage_->Rename("a", "b"));
  ASSERT_OK(WriteAll(remote_files_, "a", "new"));
  EXPECT_EQ(Get(*storage_, "a"), "new");
  ASSERT_OK(storage_->DeleteTree("run"));
  EXPECT_EQ(Get(staged_files_, path_), "none");
}

TEST_F(TieredStorageTest, WritesToTheRemoteStorageWhereTheStagingTierHasNoRoom) {
  staging_->SetDiskBytes(2);
  ASSERT_OK(WriteAll(*storage_, path_, "abc"));
  EXPECT_EQ(Get(staged_files_, path_), "none");
  EXPECT_EQ(Get(*storage_, path_), "abc");
}

TEST_F(TieredStorageTest, WritesToTheRemoteStorageWhatTheLimitLeavesNoRoomFor) {
  TieredStorage limited(std::make_unique<FaultInjectingStorage>(staged_files_),
                        std::make_unique<FaultInjectingStorage>(remote_files_),
                        [](uint64_t size_bytes) { return size_bytes <= 2; });
  ASSERT_OK(WriteAll(limited, path_, "abc"));
  EXPECT_EQ(Get(staged_files_, path_), "none");
  EXPECT_EQ(Get(limited, path_), "abc");
  ASSERT_OK(WriteAll(limited, path_, "ab"));
  EXPECT_EQ(Get(staged_files_, path_), "ab");
}

TEST_F(TieredStorageTest, AFailedUploadIsAnErrorOfTheSync) {
  remote_->FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kWriteAt; },
      absl::UnavailableError("injected"));
  EXPECT_TRUE(absl::IsUnavailable(WriteAll(*storage_, path_, "abc")));
}

TEST_F(TieredStorageTest, SmallFilesAreNotReadFromTheStagingTier) {
  ASSERT_OK(storage_->Write("run/step-00000001/manifest.pb", "m", {}));
  EXPECT_EQ(Get(staged_files_, "run/step-00000001/manifest.pb"), "none");
  EXPECT_EQ(Get(*storage_, "run/step-00000001/manifest.pb"), "m");
}

}  // namespace
}  // namespace tessera
