// Every byte that a scan delivers is delivered once and has been checked.

#include "checkpoint/scan/scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/scan/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/forwarding_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kChunkBytes = 64;
constexpr uint64_t kFirstFileBytes = 600;

// Two files, each with one shard of one tensor, of different lengths and without headers.
class ScanTest : public testing::Test {
 protected:
  ScanTest() : faulty_(storage_) {
    EXPECT_OK(storage_.MakeDirectory("c"));
    LogicalTensor& tensor = *manifest_.add_tensors();
    tensor.set_name("w");
    tensor.set_dtype(ToProto(DType::kF32));
    tensor.add_global_shape(250);
    int64_t element = 0;
    for (const int64_t count : {int64_t{kFirstFileBytes / sizeof(float)}, int64_t{100}}) {
      std::string contents(count * sizeof(float), '\0');
      for (char& byte : contents)
        byte = static_cast<char>(all_.size() + (&byte - &contents[0]) * 7);
      all_ += contents;
      const int f = manifest_.files_size();
      DataFile& file = *manifest_.add_files();
      file.set_path(absl::StrCat("file-", f));
      file.set_size_bytes(contents.size());
      file.set_chunk_bytes(kChunkBytes);
      for (size_t at = 0; at < contents.size(); at += kChunkBytes) {
        file.add_chunk_crc32c(Crc32c(std::string_view(contents).substr(at, kChunkBytes)));
      }
      EXPECT_OK(WriteAll(storage_, absl::StrCat("c/", file.path()), contents));
      Shards& shards = *tensor.mutable_shards();
      shards.add_global_offset(element);
      shards.add_shape(count);
      shards.add_file_index(f);
      shards.add_file_offset(0);
      element += count;
    }
  }

  // The bytes of both files as a scan delivers them; those that it does not deliver are '?'.
  absl::Status Scan(const ScanOptions& options, std::string& seen) {
    seen.assign(all_.size(), '?');
    Scanner scanner(faulty_, "c", manifest_, options);
    TESSERA_RETURN_IF_ERROR(scanner.OpenAll());
    digests_.emplace(manifest_, scanner.map(), options.io_threads);
    return scanner.Run(scanner.WholeFiles(),
                       [&](int worker, const FilePiece& chunk, const std::byte* data) {
                         EXPECT_LT(worker, options.io_threads);
                         EXPECT_EQ(chunk.begin % kChunkBytes, 0);
                         EXPECT_LE(chunk.size(), kChunkBytes);
                         const uint64_t at = chunk.file_index * kFirstFileBytes + chunk.begin;
                         std::memcpy(seen.data() + at, data, chunk.size());
                         digests_->Add(worker, chunk, data);
                         return absl::OkStatus();
                       });
  }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_;
  Manifest manifest_;
  std::string all_;
  std::optional<TensorDigests> digests_;
};

TEST_F(ScanTest, DeliversEveryByteOnceWithAnyNumberOfThreadsAndAnyMemory) {
  for (const int threads : {1, 3}) {
    for (const uint64_t staging_bytes : {uint64_t{1}, uint64_t{200}, uint64_t{1} << 20}) {
      std::string seen;
      ASSERT_OK(Scan({.io_threads = threads, .staging_bytes = staging_bytes}, seen));
      EXPECT_EQ(seen, all_);
      EXPECT_EQ(digests_->Sum(0), DigestRun(0, all_.data(), 250, sizeof(float)));
    }
  }
}

// Only whole chunks have checksums.
TEST_F(ScanTest, BytesThatNoChecksumCoversEndTheScan) {
  Scanner scanner(storage_, "c", manifest_, {.io_threads = 1});
  ASSERT_OK(scanner.OpenAll());
  const auto ignore = [](int, const FilePiece&, const std::byte*) { return absl::OkStatus(); };
  for (const FilePiece& range :
       {FilePiece{0, 0, 65}, FilePiece{0, 1, 65}, FilePiece{0, 1, 64}, FilePiece{1, 64, 399}}) {
    const absl::Status status = scanner.Run({&range, 1}, ignore);
    EXPECT_TRUE(absl::IsInternal(status)) << range.begin << " " << range.end << " " << status;
  }
}

TEST_F(ScanTest, DamageEndsTheScanAndNamesFileOffsetTensorAndParts) {
  faulty_.CorruptReads("c/file-1", 70, std::byte{4});
  std::string seen;
  const absl::Status damaged = Scan({.io_threads = 1}, seen);
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  for (const char* part : {"c/file-1", "at offset 70", "tensor w", "[64, 128)"}) {
    EXPECT_THAT(std::string(damaged.message()), HasSubstr(part));
  }
  const auto parts = FindDamagedParts(damaged);
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(*parts, (std::vector<DamagedPart>{{"file-1", 64, 128}}));
  EXPECT_EQ(seen.substr(kFirstFileBytes + 64, 64), std::string(64, '?'))
      << "delivered a damaged chunk";
}

TEST_F(ScanTest, ReportedDamageDoesNotEndTheScan) {
  faulty_.CorruptReads("c/file-0", 130, std::byte{4});
  faulty_.TruncateReads("c/file-1", 100);
  std::vector<Damage> damage;
  std::string seen;
  ASSERT_OK(Scan({.io_threads = 2, .on_damage = [&](Damage d) { damage.push_back(std::move(d)); }},
                 seen));
  ASSERT_EQ(damage.size(), 2);
  EXPECT_EQ(damage[0].file, "file-1");
  EXPECT_EQ(damage[0].offset_bytes, 100);
  EXPECT_EQ(damage[1].file, "file-0");
  EXPECT_EQ(damage[1].offset_bytes, 130);
  EXPECT_EQ(seen.substr(kFirstFileBytes),
            all_.substr(kFirstFileBytes, 100) + std::string(300, '?'));
}

// Counts the reads that were started and not ended, and looks whether their memory is still there.
class StartedReads final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, base().Open(path));
    return std::make_unique<File>(std::move(file), *this);
  }
  size_t now() const { return now_; }

 private:
  struct Read final : PendingIo {
    Read(StartedReads& counts, const ReadableFile& file, uint64_t at, std::span<std::byte> out)
        : counts(counts), file(file), at(at), out(out) {}
    ~Read() override {
      out[0] = std::byte(1);
      --counts.now_;
    }
    absl::Status Wait() override { return file.ReadAt(at, out); }
    StartedReads& counts;
    const ReadableFile& file;
    const uint64_t at;
    const std::span<std::byte> out;
  };
  struct File final : ReadableFile {
    File(std::unique_ptr<ReadableFile> base, StartedReads& counts)
        : base(std::move(base)), counts(counts) {}
    absl::Status ReadAt(uint64_t at, std::span<std::byte> out) const override {
      return base->ReadAt(at, out);
    }
    std::unique_ptr<PendingIo> StartReadAt(uint64_t at, std::span<std::byte> out,
                                           bool original) const override {
      EXPECT_TRUE(original);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(out.data()) % kIoAlignmentBytes, OffsetInPage(at));
      ++counts.now_;
      return std::make_unique<Read>(counts, *base, at, out);
    }
    size_t OffsetInPage(uint64_t at) const override { return (at + 1000) % kIoAlignmentBytes; }
    uint64_t size_bytes() const override { return base->size_bytes(); }
    const std::unique_ptr<ReadableFile> base;
    StartedReads& counts;
  };

  std::atomic<size_t> now_ = 0;
};

TEST_F(ScanTest, EachThreadHasItsNextReadInFlightAsFarAsMemoryGoes) {
  for (const auto& [threads, staging_bytes, next] : std::vector<std::tuple<int, uint64_t, size_t>>{
           {1, 1 << 20, 1}, {1, kChunkBytes, 0}, {3, 1 << 20, 3}, {3, 3 * kChunkBytes, 2}}) {
    StartedReads reads(faulty_);
    Scanner scanner(reads, "c", manifest_,
                    {.io_threads = threads, .staging_bytes = staging_bytes, .read_original = true});
    ASSERT_OK(scanner.OpenAll());
    std::vector<FilePiece> chunks;
    for (uint64_t at = 0; at < kFirstFileBytes; at += kChunkBytes) {
      chunks.push_back({0, at, std::min<uint64_t>(kFirstFileBytes, at + kChunkBytes)});
    }
    const auto take = [&, threads = threads, next = next](int, const FilePiece& chunk,
                                                          const std::byte*) {
      EXPECT_LE(reads.now(), next);
      if (threads == 1) EXPECT_EQ(reads.now(), chunk.end < kFirstFileBytes ? next : 0);
      return absl::OkStatus();
    };
    ASSERT_OK(scanner.Run(chunks, take));
    EXPECT_EQ(reads.now(), 0);
    // After an error nothing is in flight, either.
    const auto refuse = [](int, const FilePiece&, const std::byte*) {
      return absl::AbortedError("enough");
    };
    EXPECT_TRUE(absl::IsAborted(scanner.Run(chunks, refuse)));
    EXPECT_EQ(reads.now(), 0);
  }
}

TEST_F(ScanTest, ChunksAtTheEndsOfRangesAreKeptForOtherScans) {
  for (const uint64_t max_bytes : {uint64_t{2} * kChunkBytes, uint64_t{kChunkBytes}, uint64_t{1}}) {
    EdgeChunkCache ends(max_bytes);
    std::string seen(all_.size(), '?');
    for (const FilePiece& range :
         {FilePiece{0, 0, 256}, {0, 192, 320}, {0, 192, 256}, {1, 192, 256}}) {
      std::vector<uint64_t> chunks;
      Scanner scanner(storage_, "c", manifest_, {.io_threads = 1});
      ASSERT_OK(scanner.OpenAll());
      ScanBuffers buffers = {.ends = &ends};
      const auto see = [&](int, const FilePiece& chunk, const std::byte* data) {
        std::memcpy(seen.data() + chunk.file_index * kFirstFileBytes + chunk.begin, data,
                    chunk.size());
        chunks.push_back(chunk.begin);
        return absl::OkStatus();
      };
      ASSERT_OK(scanner.Run({&range, 1}, see, &buffers));
      EXPECT_EQ(chunks.size(), range.size() / kChunkBytes);
    }
    EXPECT_EQ(seen.substr(0, 320), all_.substr(0, 320));
    EXPECT_EQ(seen.substr(kFirstFileBytes + 192, 64), all_.substr(kFirstFileBytes + 192, 64));
    // The second range pushes a chunk out, without which the third one's is read where one is kept.
    EXPECT_EQ(ends.found_bytes() / kChunkBytes, max_bytes / kChunkBytes);
  }
}

TEST_F(ScanTest, TheErrorIsThatOfTheFirstPieceThatFailed) {
  for (const uint64_t at : {kFirstFileBytes - 1, uint64_t{300}, uint64_t{100}})
    faulty_.CorruptReads("c/file-0", at, std::byte{4});
  std::string seen;
  const absl::Status damaged = Scan({.io_threads = 3, .staging_bytes = 3 * kChunkBytes}, seen);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("[64, 128)"));
}

TEST_F(ScanTest, AnErrorOfTheCallbackEndsTheScan) {
  Scanner scanner(storage_, "c", manifest_, {.io_threads = 2});
  ASSERT_OK(scanner.OpenAll());
  const absl::Status status = scanner.Run(
      scanner.WholeFiles(),
      [](int, const FilePiece&, const std::byte*) { return absl::AbortedError("enough"); });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST_F(ScanTest, AFunctionThatThrowsInOneReaderEndsTheOthers) {
  std::atomic<int> calls = 0;
  ScanOptions options = {.io_threads = 2, .staging_bytes = 2 * kChunkBytes};
  options.is_cancelled = [&]() -> bool {
    if (++calls == 2) throw std::runtime_error("mine");
    absl::SleepFor(absl::Milliseconds(50));  // the other reader begins meanwhile
    return false;
  };
  std::string seen;
  const absl::Status thrown = Scan(options, seen);
  EXPECT_TRUE(absl::IsInternal(thrown)) << thrown;
  EXPECT_LT(calls, 17) << "every piece";
}

TEST_F(ScanTest, EveryFileThatCannotBeReadIsListed) {
  for (int f = 0; f < 2; ++f) faulty_.TruncateReads(absl::StrCat("c/file-", f), 10 + f);
  manifest_.add_files()->set_path("missing");
  Scanner scanner(faulty_, "c", manifest_, {});
  const absl::Status opened = scanner.OpenAll();
  EXPECT_TRUE(absl::IsDataLoss(opened)) << opened;
  for (const char* part : {"file-0", "found 10", "file-1", "found 11", "missing"}) {
    EXPECT_THAT(std::string(opened.message()), HasSubstr(part));
  }
  EXPECT_EQ(FindDamagedParts(opened)->size(), 3);
}

// Holds up the first one to arrive until there is a second one.
struct Meeting {
  void Arrive() {
    const int number = ++arrived;
    if (number == 2) second.Notify();
    if (number == 1) second.WaitForNotification();
  }
  std::atomic<int> arrived = 0;
  absl::Notification second;
};

// A storage in which the first file to be opened and the first to be read wait for another one.
class MeetingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    opens_.Arrive();
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, base().Open(path));
    return std::make_unique<File>(std::move(file), reads_);
  }

 private:
  struct File final : ReadableFile {
    File(std::unique_ptr<ReadableFile> base, Meeting& reads)
        : base(std::move(base)), reads(reads) {}
    absl::Status ReadAt(uint64_t at, std::span<std::byte> out) const override {
      reads.Arrive();
      return base->ReadAt(at, out);
    }
    uint64_t size_bytes() const override { return base->size_bytes(); }
    const std::unique_ptr<ReadableFile> base;
    Meeting& reads;
  };

  Meeting opens_, reads_;
};

// One thread would wait for ever.
TEST(VerifyTest, ThreadsLookAtManyFilesAndListTheDamagedOnesInOrder) {
  constexpr int kFiles = 100, kElements = 16;
  MemoryStorage memory;
  ASSERT_OK(memory.MakeDirectory("c"));
  Manifest manifest;
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_name("w");
  tensor.set_dtype(ToProto(DType::kF32));
  tensor.add_global_shape(kFiles * kElements);
  const std::string contents(kElements * sizeof(float), 'x');
  std::vector<std::string> expected;
  for (int f = 0; f < kFiles; ++f) {
    DataFile& file = *manifest.add_files();
    file.set_path(absl::StrFormat("file-%02d", f));
    file.set_size_bytes(contents.size());
    file.set_chunk_bytes(kChunkBytes);
    file.add_chunk_crc32c(Crc32c(contents));
    AddShard({{f * kElements}, {kElements}}, f, 0, tensor);
    const std::string path = absl::StrCat("c/", file.path());
    if (f % 3 > 0) ASSERT_OK(WriteAll(memory, path, f % 3 == 1 ? contents : contents + "more"));
    const char* const damage[] = {"no such file", "header: ", "size: expected 64"};
    expected.push_back(absl::StrCat(file.path(), ": ", damage[f % 3]));
  }
  MeetingStorage storage(memory);
  ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                       VerifyFiles(storage, "c", manifest, {.contents = false, .io_threads = 8}));
  ASSERT_EQ(report.damage.size(), expected.size());
  for (int f = 0; f < kFiles; ++f) {
    const Damage& damage = report.damage[f];
    EXPECT_THAT(absl::StrCat(damage.file, ": ", damage.message), HasSubstr(expected[f]));
  }
}

}  // namespace
}  // namespace tessera::ckpt
