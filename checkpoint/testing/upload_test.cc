// Saves through a TieredStorage and restarts that find staged files: whole, damaged and old ones.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"
#include "storage/tiered/staging_folder.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera::ckpt {
namespace {

constexpr int64_t kUploadedElements = 1000;

class UploadTest : public testing::Test {
 protected:
  UploadTest() {
    auto staging = std::make_unique<FaultInjectingStorage>(staged_files_);
    auto remote = std::make_unique<FaultInjectingStorage>(remote_files_);
    staging_ = staging.get();
    remote_ = remote.get();
    storage_ = std::make_unique<TieredStorage>(std::move(staging), std::move(remote));
    weight_.resize(kUploadedElements);
    std::iota(weight_.begin(), weight_.end(), 0.0f);
  }

  // Checks that a load succeeds with the saved contents.
  void ExpectLoads() {
    std::vector<float> loaded(kUploadedElements);
    ASSERT_OK(LoadCheckpoint(*storage_, directory_, OneTensor(loaded)));
    EXPECT_EQ(loaded, weight_);
  }

  StagedFiles DeleteDamaged() {
    const auto checkpoint = Checkpoint::Open(*storage_, directory_);
    EXPECT_OK(checkpoint);
    std::vector<uint32_t> files(checkpoint->manifest().files_size());
    std::iota(files.begin(), files.end(), 0);
    return DeleteDamagedStagedFiles(*staging_, directory_, checkpoint->manifest(), files);
  }

  std::string DataFile(Storage& storage) {
    const std::vector<std::string> names = *storage.List(directory_);
    for (const std::string& name : names) {
      if (name.ends_with(".safetensors")) return directory_ + "/" + name;
    }
    return "none";
  }

  int64_t RemoteReadsOfData() const {
    int64_t reads = 0;
    for (const Operation& operation : remote_->operations()) {
      reads += operation.kind == OperationKind::kReadAt && operation.path.ends_with(".safetensors");
    }
    return reads;
  }

  MemoryStorage staged_files_, remote_files_;
  FaultInjectingStorage* staging_;
  FaultInjectingStorage* remote_;
  std::unique_ptr<TieredStorage> storage_;
  std::vector<float> weight_;
  const std::string directory_ = StepDirectoryName(1);
};

TEST_F(UploadTest, ASaveIsWholeInTheRemoteStorage) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(remote_files_, directory_, {.digests = true}));
  EXPECT_TRUE(verified.damage.empty());
}

TEST_F(UploadTest, SoIsOneThatOverwritesAnother) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  weight_[0] = 7;
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_), {.overwrite = true}));
  ExpectLoads();
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(remote_files_, directory_, {.digests = true}));
  EXPECT_TRUE(verified.damage.empty());
  EXPECT_EQ(staged_files_.List(directory_)->size(), 1) << "the staged files of the old one";
}

TEST_F(UploadTest, ARestartReadsStagedFiles) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  const StagedFiles copies = DeleteDamaged();
  EXPECT_EQ(copies.deleted_files, 0);
  EXPECT_GT(copies.intact_bytes, kUploadedElements * sizeof(float));
  ExpectLoads();
  EXPECT_EQ(RemoteReadsOfData(), 0);
}

// An error says nothing about the bytes of a copy, whatever its code.
TEST_F(UploadTest, ACopyThatCannotBeReadOrDeletedStays) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  const std::string path = DataFile(staged_files_);
  const auto fail = [&](OperationKind kind, const absl::Status& error) {
    staging_->FailWhere([kind](const Operation& operation) { return operation.kind == kind; },
                        error);
    const StagedFiles copies = DeleteDamaged();
    staging_->ClearFaults();
    EXPECT_EQ(copies.intact_bytes, 0);
    EXPECT_EQ(copies.deleted_files, 0);
    EXPECT_EQ(copies.unknown_files, 1);
    EXPECT_EQ(copies.first_unknown.code(), error.code()) << copies.first_unknown;
    EXPECT_OK(staged_files_.Open(path)) << error;
  };
  fail(OperationKind::kReadAt, absl::UnavailableError("injected"));
  fail(OperationKind::kReadAt, absl::DataLossError("injected"));
  fail(OperationKind::kOpen, absl::PermissionDeniedError("injected"));
  EXPECT_GT(DeleteDamaged().intact_bytes, kUploadedElements * sizeof(float));
  ASSERT_OK(WriteAll(staged_files_, path, "short"));
  fail(OperationKind::kDelete, absl::UnavailableError("injected"));
  EXPECT_EQ(DeleteDamaged().deleted_files, 1);
}

TEST_F(UploadTest, ALoadReadsTheOriginalOfADamagedCopy) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  const std::string path = DataFile(staged_files_);
  const size_t bytes = ReadAll(staged_files_, path, 1 << 20)->size();
  ASSERT_OK(WriteAll(staged_files_, path, std::string(bytes, '\0')));
  ExpectLoads();
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(*storage_, directory_, {.digests = true}));
  EXPECT_TRUE(verified.damage.empty());
}

TEST_F(UploadTest, ACopyOfAnotherLengthIsDropped) {
  ASSERT_OK(CheckpointFolder(*storage_).Save(1, OneTensor(weight_)));
  ASSERT_OK(WriteAll(staged_files_, DataFile(staged_files_), "short"));
  EXPECT_EQ(DeleteDamaged().deleted_files, 1);
  ExpectLoads();
}

}  // namespace
}  // namespace tessera::ckpt
