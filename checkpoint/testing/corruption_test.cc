// Flips every byte of every file of a small checkpoint, and truncates every file at every length,
// deletes and replaces it: Verify reports it with file, offset and tensor, and Load refuses it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/scan/scan.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

class CorruptionTest : public testing::Test {
 protected:
  CorruptionTest() : faulty_(storage_) {
    std::mt19937_64 random(1);
    tensors_.push_back(
        RandomTensor("wte.weight", TensorRole::kWeight, DType::kF32, {6, 4}, random));
    tensors_.push_back(RandomTensor("h.0.bias", TensorRole::kWeight, DType::kBF16, {5}, random));
    tensors_.push_back(RandomTensor("h.0.count", TensorRole::kBuffer, DType::kI64, {}, random));
    tensors_.push_back(RandomTensor("exp_avg.wte.weight", TensorRole::kOptimizerState, DType::kF32,
                                    {6, 4}, random));
    LocalState state = State(true);
    SaveOptions options;
    options.checksum_chunk_bytes = 64;
    SingleProcessGroup group;
    const auto report = OrFail(CheckpointFolder(storage_).Save(7, state.dict, On(group, options)));
    directory_ = report.directory;
    manifest_ = *ReadManifest(storage_, directory_);
  }

  LocalState State(bool fill) { return RowsOf(tensors_, 0, 1, fill); }

  absl::Status TryLoad(Storage& storage) {
    LocalState state = State(false);
    return LoadCheckpoint(storage, directory_, state.dict).status();
  }

  // The tensor that contains the byte, according to the manifest; empty: none.
  std::string TensorAt(int file, uint64_t offset) {
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      for (int64_t s = 0; s < ShardCount(tensor); ++s) {
        const uint64_t begin = tensor.shards().file_offset(s);
        if (tensor.shards().file_index(s) == static_cast<uint32_t>(file) && begin <= offset &&
            offset < begin + ShardBytes(tensor, s)) {
          return tensor.name();
        }
      }
    }
    return "";
  }

  std::string Path(int file) { return absl::StrCat(directory_, "/", manifest_.files(file).path()); }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_;
  std::vector<WholeTensor> tensors_;
  std::string directory_;
  Manifest manifest_;
};

// Number of bytes of manifest.pb that were read.
uint64_t ManifestBytesRead(const FaultInjectingStorage& storage) {
  uint64_t bytes = 0;
  for (const Operation& operation : storage.operations()) {
    const bool is_manifest = operation.path.ends_with(kManifestFileName);
    if (is_manifest && operation.kind == OperationKind::kReadAt) bytes += operation.size_bytes;
  }
  return bytes;
}

TEST_F(CorruptionTest, NoMoreThanItsHeaderIsReadOfWhatIsNoManifest) {
  const std::string path = directory_ + "/" + std::string(kManifestFileName);
  ASSERT_OK(WriteAll(storage_, path, std::string(4 << 20, 'x')));
  const absl::Status status = TryLoad(faulty_);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(std::string(status.message()).find(storage_.Describe(path)), std::string::npos);
  EXPECT_EQ(ManifestBytesRead(faulty_), kManifestHeaderBytes);
}

TEST_F(CorruptionTest, EveryByteOfDataFiles) {
  ASSERT_EQ(manifest_.files_size(), 2);
  for (int f = 0; f < manifest_.files_size(); ++f) {
    for (uint64_t offset = 0; offset < manifest_.files(f).size_bytes(); ++offset) {
      SCOPED_TRACE(absl::StrCat(Path(f), " at ", offset));
      faulty_.CorruptReads(Path(f), offset, std::byte(1 << offset % 8));
      ASSERT_OK_AND_ASSIGN(
          const auto report,
          VerifyCheckpoint(faulty_, directory_, {.digests = offset % 2 == 0, .io_threads = 1}));
      const std::string tensor = TensorAt(f, offset);
      const bool named = std::ranges::any_of(report.damage, [&](const Damage& damage) {
        return damage.file == manifest_.files(f).path() && damage.offset_bytes == offset &&
               damage.tensor == tensor && !damage.message.empty();
      });
      EXPECT_TRUE(named);
      if (!tensor.empty()) {
        const absl::Status load = TryLoad(faulty_);
        EXPECT_TRUE(absl::IsDataLoss(load)) << load;
        for (const std::string& part :
             {manifest_.files(f).path(), tensor, std::to_string(offset)}) {
          EXPECT_NE(load.message().find(part), absl::string_view::npos) << load << "\n" << part;
        }
      }
      faulty_.ClearFaults();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CorruptionTest, EveryTruncationOfDataFiles) {
  for (int f = 0; f < manifest_.files_size(); ++f) {
    for (uint64_t size = 0; size < manifest_.files(f).size_bytes(); ++size) {
      SCOPED_TRACE(absl::StrCat(Path(f), " cut to ", size));
      faulty_.TruncateReads(Path(f), size);
      ASSERT_OK_AND_ASSIGN(const auto report,
                           VerifyCheckpoint(faulty_, directory_, {.io_threads = 1}));
      ASSERT_FALSE(report.damage.empty());
      const Damage& damage = report.damage.back();
      EXPECT_EQ(damage.file, manifest_.files(f).path());
      EXPECT_EQ(damage.offset_bytes, size);
      EXPECT_NE(damage.tensor, "");
      EXPECT_NE(damage.message.find(std::to_string(manifest_.files(f).size_bytes())),
                std::string::npos);
      EXPECT_TRUE(absl::IsDataLoss(TryLoad(faulty_)));
      faulty_.ClearFaults();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CorruptionTest, MissingFiles) {
  for (int f = 0; f < manifest_.files_size(); ++f) {
    faulty_.FailWhere(
        [&](const Operation& o) { return o.kind == OperationKind::kOpen && o.path == Path(f); },
        absl::NotFoundError("injected"));
    ASSERT_OK_AND_ASSIGN(const auto report,
                         VerifyCheckpoint(faulty_, directory_, {.io_threads = 1}));
    ASSERT_EQ(report.damage.size(), 1);
    EXPECT_EQ(report.damage[0].file, manifest_.files(f).path());
    EXPECT_NE(report.damage[0].tensor, "");
    EXPECT_TRUE(absl::IsNotFound(TryLoad(faulty_)));
    faulty_.ClearFaults();
  }
}

// While a file is opened, its header is read in two parts, and its contents are.
TEST_F(CorruptionTest, AStorageThatFailsIsNoDamage) {
  int accesses = 0;
  for (int failing = 1; failing <= 4; ++failing) {
    accesses = 0;
    faulty_.FailWhere(
        [&](const Operation& o) { return o.path == Path(0) && ++accesses == failing; },
        absl::UnavailableError("Input/output error"));
    const absl::Status verified = VerifyCheckpoint(faulty_, directory_, {.io_threads = 1}).status();
    EXPECT_TRUE(absl::IsUnavailable(verified)) << failing << ": " << verified;
    faulty_.ClearFaults();
  }
  EXPECT_EQ(accesses, 4);
}

TEST_F(CorruptionTest, FilesThatWereSwapped) {
  // Each is complete and well-formed, but does not match the manifest.
  ASSERT_OK(storage_.Rename(Path(0), "swap"));
  ASSERT_OK(storage_.Rename(Path(1), Path(0)));
  ASSERT_OK(storage_.Rename("swap", Path(1)));
  ASSERT_OK_AND_ASSIGN(const auto report,
                       VerifyCheckpoint(storage_, directory_, {.digests = true, .io_threads = 1}));
  EXPECT_GE(report.damage.size(), 2);
  EXPECT_TRUE(absl::IsDataLoss(TryLoad(storage_)));
}

TEST_F(CorruptionTest, DigestsThatBelongToOtherTensors) {
  Manifest forged = manifest_;
  std::swap(*forged.mutable_tensors(0)->mutable_digest(),
            *forged.mutable_tensors(3)->mutable_digest());
  ASSERT_OK_AND_ASSIGN(const auto bytes, EncodeManifest(forged));
  ASSERT_OK(WriteAll(storage_, absl::StrCat(directory_, "/manifest.pb"), bytes));
  ASSERT_OK_AND_ASSIGN(const auto report,
                       VerifyCheckpoint(storage_, directory_, {.digests = true, .io_threads = 1}));
  ASSERT_EQ(report.damage.size(), 2);
  EXPECT_EQ(report.damage[0].tensor, "wte.weight");
  EXPECT_NE(report.damage[0].message.find("digest"), std::string::npos);
}

TEST_F(CorruptionTest, AnyChunkSizeOfAManifestIsSafe) {
  for (const uint32_t chunk_bytes : {0xfffffff8u, 1u << 20, 12u, 3u}) {
    Manifest forged = manifest_;
    for (DataFile& file : *forged.mutable_files()) {
      const std::string path = absl::StrCat(directory_, "/", file.path());
      const std::string contents = *ReadAll(storage_, path, 1 << 20);
      file.set_chunk_bytes(chunk_bytes);
      file.clear_chunk_crc32c();
      for (uint64_t at = 0; at < contents.size(); at += chunk_bytes) {
        file.add_chunk_crc32c(Crc32c(std::string_view(contents).substr(at, chunk_bytes)));
      }
    }
    ASSERT_OK_AND_ASSIGN(const auto bytes, EncodeManifest(forged));
    ASSERT_OK(WriteAll(storage_, absl::StrCat(directory_, "/manifest.pb"), bytes));
    ASSERT_OK_AND_ASSIGN(const auto report, VerifyCheckpoint(storage_, directory_,
                                                             {.digests = true, .io_threads = 2}));
    const bool cuts_elements = chunk_bytes % 8 != 0;  // one tensor is I64
    EXPECT_EQ(report.damage.empty(), !cuts_elements);
    EXPECT_EQ(absl::IsDataLoss(TryLoad(storage_)), cuts_elements) << chunk_bytes;
  }
}

// A checkpoint of many files, each with many shards and chunks.
class ManyFilesTest : public testing::Test {
 protected:
  ManyFilesTest() : faulty_(storage_) {
    std::mt19937_64 random(1);
    tensor_ = RandomTensor("w", TensorRole::kWeight, DType::kF32, {2000, 16}, random);
    std::vector<Box> rows;
    for (int64_t row = 0; row < 2000; ++row) rows.push_back({{row, 0}, {1, 16}});
    state_.Add(tensor_, rows, true);
    SaveOptions options;
    options.checksum_chunk_bytes = 64;
    options.max_file_bytes = 1000;
    const auto report = OrFail(CheckpointFolder(storage_).Save(7, state_.dict, options));
    directory_ = report.directory;
    manifest_ = *ReadManifest(storage_, directory_);
    EXPECT_GT(manifest_.files_size(), 100);
  }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_;
  SingleProcessGroup group_;
  WholeTensor tensor_;
  LocalState state_;
  std::string directory_;
  Manifest manifest_;
};

// A map visits all shards: one for each damaged file would cost the square of their number.
TEST_F(ManyFilesTest, FilesOfAWrongSizeCostOneMapTogether) {
  for (const DataFile& file : manifest_.files()) {
    faulty_.TruncateReads(directory_ + "/" + file.path(), file.size_bytes() - 1);
  }
  Manifest manifest = manifest_;
  Scanner scanner(faulty_, directory_, manifest, {});
  scanner.map();
  // Another map would find no tensor.
  for (LogicalTensor& tensor : *manifest.mutable_tensors()) tensor.clear_shards();
  const absl::Status opened = scanner.OpenAll();
  EXPECT_TRUE(absl::IsDataLoss(opened)) << opened;
  const std::vector<std::string> lines = absl::StrSplit(opened.message(), '\n');
  EXPECT_EQ(lines.size(), manifest.files_size());
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("tensor w: "));
}

TEST_F(ManyFilesTest, ChunksThatAreNotReportedAreNotSearched) {
  // One file of more than a hundred chunks, all of them bad.
  SaveOptions options;
  options.checksum_chunk_bytes = 64;
  ASSERT_OK_AND_ASSIGN(const auto saved, CheckpointFolder(storage_).Save(8, state_.dict, options));
  const Manifest manifest = *ReadManifest(storage_, saved.directory);
  ASSERT_EQ(manifest.files_size(), 1);
  ASSERT_GT(manifest.files(0).chunk_crc32c_size(), 1000);
  const std::string path = saved.directory + "/" + manifest.files(0).path();
  const std::string garbage(manifest.files(0).size_bytes(), 'x');
  ASSERT_OK(WriteAll(storage_, path, garbage));
  ASSERT_OK_AND_ASSIGN(const auto report,
                       VerifyCheckpoint(storage_, saved.directory, {.io_threads = 2}));
  EXPECT_LT(report.damage.size(), 105);

  size_t reported = 0;
  Scanner scanner(storage_, saved.directory, manifest, {.on_damage = [&](Damage) { ++reported; }});
  size_t described = 0;
  const auto describe = [&] {
    ++described;
    return Damage{.file = path};
  };
  for (int chunk = 0; chunk < 1000; ++chunk) scanner.ReportDamage(0, describe);
  EXPECT_EQ(described, 100);
  EXPECT_EQ(reported, 100);
}

TEST_F(ManyFilesTest, PiecesThatCannotBeReadAreReportedOnlySoOften) {
  faulty_.FailWhere(
      [](const Operation& o) {
        return o.kind == OperationKind::kReadAt && o.path.ends_with(".safetensors");
      },
      absl::DataLossError("Input/output error"));
  ASSERT_OK_AND_ASSIGN(const auto report, VerifyCheckpoint(faulty_, directory_, {.io_threads = 2}));
  EXPECT_GE(report.damage.size(), manifest_.files_size());
  EXPECT_LE(report.damage.size(), 101 * manifest_.files_size());
}

}  // namespace
}  // namespace tessera::ckpt
