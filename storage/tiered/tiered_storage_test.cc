#include "storage/tiered/tiered_storage.h"

#include <unistd.h>

#include <cstddef>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
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
using ::testing::HasSubstr;
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

// Counts the bytes of whole MiB that arrive with their checksums.
class PassedOnStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    auto file = ForwardingStorage::Create(path, size_hint_bytes);
    if (!file.ok()) return file;
    return std::make_unique<File>(*std::move(file), checked_bytes_);
  }
  uint64_t checked_bytes() const { return checked_bytes_; }

 private:
  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> file, uint64_t& checked_bytes)
        : file_(std::move(file)), checked_bytes_(checked_bytes) {}
    absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
      return file_->WriteAt(offset_bytes, data);
    }
    absl::Status WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                const ChunkChecksums& checksums) override {
      for (uint64_t at = 0; at + kMiB <= data.size(); at += kMiB) {
        const std::optional<uint32_t> crc = checksums.OfRange(at, kMiB);
        if (!crc.has_value()) continue;
        checked_bytes_ += kMiB;
        EXPECT_EQ(*crc, Crc32c(data.subspan(at, kMiB)));
      }
      return file_->WriteAt(offset_bytes, data);
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    static constexpr uint64_t kMiB = 1 << 20;
    const std::unique_ptr<WritableFile> file_;
    uint64_t& checked_bytes_;
  };

  uint64_t checked_bytes_ = 0;
};

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

TEST_F(TieredStorageTest, AFileThatReplacesAStagedOneIsRead) {
  ASSERT_OK(WriteAll(*storage_, path_, "old"));
  EXPECT_EQ(Get(*storage_, path_), "old");
  ASSERT_OK_AND_ASSIGN(const VersionedContents old, storage_->Read(path_, 10));
  ASSERT_OK(storage_->Write(path_, "new", {.version = old.version}));
  EXPECT_EQ(Get(*storage_, path_), "new");
  ASSERT_OK(storage_->DeleteVersion(path_, old.version));
  EXPECT_EQ(Get(*storage_, path_), "new");
  ASSERT_OK_AND_ASSIGN(const VersionedContents other, storage_->Read(path_, 10));
  ASSERT_OK(storage_->DeleteVersion(path_, other.version));
  EXPECT_EQ(Get(*storage_, path_), "none");
}

TEST_F(TieredStorageTest, AnUploadThatFailedIsNotForgotten) {
  auto file = *storage_->Create(path_, 3);
  ASSERT_OK(file->WriteAt(0, std::as_bytes(std::span<const char>("abc", 3))));
  staging_->FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kReadAt; },
      absl::DataLossError("unreadable"));
  EXPECT_TRUE(absl::IsDataLoss(file->Sync()));
  staging_->ClearFaults();
  EXPECT_TRUE(absl::IsDataLoss(file->Sync())) << "the remote file is empty";
  EXPECT_TRUE(absl::IsDataLoss(file->Close()));
}

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
  ASSERT_OK(WriteAll(*storage_, path_, "old"));
  ASSERT_OK(WriteAll(limited, path_, "new"));
  EXPECT_EQ(Get(limited, path_), "new");
}

// The checksums are the writer's, or those of what it has written.
TEST_F(TieredStorageTest, ADamagedStagedFileIsNotUploadedInSilence) {
  const std::string text = "abcdefghijklmnopqrst";
  const auto bytes = std::as_bytes(std::span<const char>(text));
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < text.size(); at += 8) crcs.push_back(Crc32c(text.substr(at, 8)));
  for (const bool known : {true, false}) {
    for (uint64_t damaged = 0; damaged <= text.size(); ++damaged) {
      SCOPED_TRACE(absl::StrCat(known, " ", damaged));
      auto file = *storage_->Create(path_, text.size());
      ASSERT_OK(file->WriteAt(20, bytes));
      ASSERT_OK(known ? file->WriteCheckedAt(0, bytes, {8, crcs}) : file->WriteAt(0, bytes));
      staging_->ClearFaults();
      if (damaged < text.size()) staging_->CorruptReads(path_, damaged, std::byte{4});
      const absl::Status synced = file->Sync();
      if (damaged == text.size()) {
        EXPECT_OK(synced);
        EXPECT_EQ(Get(remote_files_, path_), text + text);
        continue;
      }
      EXPECT_TRUE(absl::IsDataLoss(synced)) << synced;
      EXPECT_THAT(std::string(synced.message()), HasSubstr(path_));
    }
  }
}

// Large blocks, and chunks that end beside them.
TEST_F(TieredStorageTest, ChunksOfAnySizeAreComparedAndPassedOn) {
  for (const uint64_t chunk_bytes : {uint64_t{1} << 20, uint64_t{3000000}, uint64_t{20} << 20}) {
    SCOPED_TRACE(chunk_bytes);
    std::string text((uint64_t{20} << 20) + 5, 'x');
    for (size_t i = 0; i < text.size(); i += 100) text[i] = static_cast<char>(i / 100);
    std::vector<uint32_t> crcs;
    for (size_t at = 0; at < text.size(); at += chunk_bytes) {
      crcs.push_back(Crc32c(std::string_view(text).substr(at, chunk_bytes)));
    }
    const auto bytes = std::as_bytes(std::span<const char>(text));
    PassedOnStorage remote(remote_files_);
    TieredStorage storage(std::make_unique<FaultInjectingStorage>(staged_files_),
                          std::make_unique<ForwardingStorage>(static_cast<Storage&>(remote)));
    auto file = *storage.Create(path_, text.size());
    ASSERT_OK(file->WriteCheckedAt(0, bytes, {chunk_bytes, crcs}));
    ASSERT_OK(file->Sync());
    EXPECT_EQ(ReadAll(remote_files_, path_, text.size()).value_or(""), text);
    EXPECT_EQ(remote.checked_bytes(), chunk_bytes == 1 << 20 ? uint64_t{20} << 20 : 0);
    crcs.back() ^= 1;
    file = *storage.Create(path_, text.size());
    ASSERT_OK(file->WriteCheckedAt(0, bytes, {chunk_bytes, crcs}));
    EXPECT_TRUE(absl::IsDataLoss(file->Sync()));
  }
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
