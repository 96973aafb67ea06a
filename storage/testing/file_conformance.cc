// The part of the contract that is about the contents of files.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "base/threads.h"
#include "storage/aligned_buffer.h"
#include "storage/testing/storage_conformance.h"

namespace tessera {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

std::span<std::byte> Bytes(std::string& text) {
  return std::as_writable_bytes(std::span<char>(text));
}

// Values at any two offsets a sector or a block apart differ.
std::string Pattern(size_t size_bytes, uint64_t seed) {
  std::string text(size_bytes, '\0');
  for (size_t i = 0; i < size_bytes; ++i) {
    text[i] = static_cast<char>((i + seed) * 0x9E3779B97F4A7C15u >> 56);
  }
  return text;
}

// Does not use EXPECT_EQ, which would print megabytes.
void ExpectSameBytes(std::string_view found, std::string_view expected, const std::string& what) {
  if (found == expected) return;
  ASSERT_EQ(found.size(), expected.size()) << what;
  const auto f = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  FAIL() << what << ": first difference at " << (f - found.begin());
}

TEST_P(StorageConformance, WrittenBytesComeBack) {
  for (size_t size : {1, 511, 512, 4095, 4096, 4097, 65536, 100'000, 1 << 20, (1 << 20) + 1}) {
    const std::string contents = Pattern(size, size);
    Put("file", contents);
    ExpectSameBytes(Get("file"), contents, std::to_string(size));
  }
}

TEST_P(StorageConformance, StartedTransfersAreLikeThoseThatAreWaitedFor) {
  constexpr size_t kPiece = 100'000;
  for (const size_t shift : {size_t{0}, size_t{1}}) {
    const std::string contents = Pattern(5 * kPiece + shift, shift);
    ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", contents.size()));
    const std::span<const std::byte> data = Bytes(std::string_view(contents));
    std::vector<std::unique_ptr<PendingIo>> writes;
    for (size_t at = 0; at < data.size(); at += kPiece) {
      writes.push_back(
          file->StartWriteAt(at, data.subspan(at, std::min(kPiece, data.size() - at)), {}));
    }
    std::ranges::reverse(writes);
    for (const auto& write : writes) EXPECT_OK(write->Wait());
    ASSERT_OK(file->Sync());
    ASSERT_OK(file->Close());

    ASSERT_OK_AND_ASSIGN(const auto reader, storage_->Open("file"));
    AlignedBuffer out = *AlignedBuffer::Allocate(contents.size() + 1);
    std::vector<std::unique_ptr<PendingIo>> reads;
    for (size_t at = 0; at < data.size(); at += kPiece) {
      reads.push_back(reader->StartReadAt(
          at, out.span().subspan(at, std::min(kPiece, data.size() - at)), (at / kPiece) % 2 == 1));
    }
    // Not waited for: its memory is the caller's again all the same.
    std::string dropped(contents.size(), '\0');
    reader->StartReadAt(0, Bytes(dropped), /*original=*/false);
    std::ranges::reverse(reads);
    for (const auto& read : reads) EXPECT_OK(read->Wait());
    ExpectSameBytes({reinterpret_cast<char*>(out.data()), contents.size()}, contents, "started");
    const absl::Status beyond = reader->StartReadAt(1, out.span(), false)->Wait();
    EXPECT_EQ(beyond.code(), absl::StatusCode::kDataLoss) << beyond;
    EXPECT_EQ(file->StartWriteAt(0, data, {})->Wait().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST_P(StorageConformance, EmptyFile) {
  Put("empty", "");
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Open("empty"));
  EXPECT_EQ(file->size_bytes(), 0);
  EXPECT_OK(file->ReadAt(0, {}));
  EXPECT_EQ(Get("empty"), "");
}

TEST_P(StorageConformance, TheHintDoesNotDetermineTheLength) {
  for (uint64_t hint : {0, 1, 5000, 1'000'000}) {
    for (bool sync : {false, true}) {
      const std::string contents = Pattern(70'001, hint);
      ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", hint));
      ASSERT_OK(file->WriteAt(0, Bytes(std::string_view(contents))));
      if (sync) {
        ASSERT_OK(file->Sync());
        ExpectSameBytes(Get("file"), contents, std::to_string(hint));
        const absl::Status changed = file->WriteAt(70'001, Bytes("tail"));
        EXPECT_EQ(changed.code(), traits().files_change_after_sync
                                      ? absl::StatusCode::kOk
                                      : absl::StatusCode::kFailedPrecondition)
            << changed;
      }
      ASSERT_OK(file->Close());
      const bool has_tail = sync && traits().files_change_after_sync;
      ExpectSameBytes(Get("file"), contents + (has_tail ? "tail" : ""), std::to_string(hint));
    }
  }
}

TEST_P(StorageConformance, PartsNeverWrittenAreZeros) {
  const std::string piece = Pattern(10'000, 3);
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("holes", 300'000));
  ASSERT_OK(file->WriteAt(200'001, Bytes(std::string_view(piece))));
  ASSERT_OK(file->WriteAt(5'000, Bytes(std::string_view(piece))));
  ASSERT_OK(file->Close());
  std::string expected(210'001, '\0');
  expected.replace(200'001, piece.size(), piece).replace(5'000, piece.size(), piece);
  ExpectSameBytes(Get("holes"), expected, "holes");
}

TEST_P(StorageConformance, AnEmptyWriteDoesNotLengthen) {
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", 0));
  EXPECT_OK(file->WriteAt(1'000, {}));
  EXPECT_OK(file->WriteAt(0, Bytes("abc")));
  EXPECT_OK(file->Close());
  EXPECT_EQ(Get("file"), "abc");
}

TEST_P(StorageConformance, AlignedBuffersMoveAtAnyOffset) {
  AlignedBuffer out = *AlignedBuffer::Allocate(300'000), in = *AlignedBuffer::Allocate(300'000);
  const std::string contents = Pattern(300'000, 11);
  std::copy_n(Bytes(std::string_view(contents)).begin(), contents.size(), out.data());
  for (uint64_t offset : {0, 1, 512, 4095, 4096, 8192, 12'289}) {
    for (size_t size : {size_t{65'536}, size_t{131'072}, size_t{131'073}, size_t{300'000}}) {
      ASSERT_OK_AND_ASSIGN(auto writer, storage_->Create("file", offset + size));
      ASSERT_OK(writer->WriteAt(offset, out.span().first(size)));
      ASSERT_OK(writer->Close());
      ASSERT_OK_AND_ASSIGN(auto reader, storage_->Open("file"));
      ASSERT_EQ(reader->size_bytes(), offset + size);
      std::fill_n(in.data(), in.size_bytes(), std::byte{0xAA});
      ASSERT_OK(reader->ReadAt(offset, in.span().first(size)));
      EXPECT_TRUE(std::equal(in.data(), in.data() + size, out.data())) << offset << " " << size;
    }
  }
}

TEST_P(StorageConformance, ReadsAtEveryAlignment) {
  const std::string contents = Pattern(400'003, 5);
  Put("file", contents);
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Open("file"));
  std::string out(contents.size() + 64, '\0');
  for (uint64_t offset : {0, 1, 511, 4096, 4097, 65'536, 399'999}) {
    for (size_t shift : {0, 1, 16}) {
      for (size_t size : {1, 4096, 65'536, 70'000, 200'000, 400'003}) {
        const size_t n = std::min(size, contents.size() - offset);
        ASSERT_OK(file->ReadAt(offset, Bytes(out).subspan(shift, n)));
        ExpectSameBytes(std::string_view(out).substr(shift, n),
                        std::string_view(contents).substr(offset, n), std::to_string(offset));
      }
    }
  }
}

TEST_P(StorageConformance, ReadsPastTheEndAreDataLoss) {
  Put("file", Pattern(100'000, 1));
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Open("file"));
  std::string out(100'001, '\0');
  struct Case {
    uint64_t offset, size, found;
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (const Case& c : {Case{0, 100'001, 100'000}, Case{99'999, 2, 1}, Case{100'000, 1, 0},
                        Case{4096, 100'000, 95'904}, Case{1 << 30, 1, 0}, Case{kMax, 1, 0},
                        Case{kMax - 10, 100'001, 0}}) {
    const absl::Status status = file->ReadAt(c.offset, Bytes(out).first(c.size));
    ExpectError(status, absl::StatusCode::kDataLoss, "ReadAt", storage_->Describe("file"));
    const std::string message(status.message());
    for (uint64_t number : {c.offset, c.size, c.found, uint64_t{100'000}}) {
      EXPECT_NE(message.find(std::to_string(number)), std::string::npos)
          << number << ": " << message;
    }
  }
  EXPECT_OK(file->ReadAt(100'000, {}));
}

TEST_P(StorageConformance, ImpossibleOffsetsAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", 0));
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (uint64_t offset : {kMax, kMax / 2, kMax - 2}) {
    ExpectError(file->WriteAt(offset, Bytes("abc")), absl::StatusCode::kResourceExhausted,
                "WriteAt", storage_->Describe("file"));
  }
  EXPECT_OK(file->WriteAt(0, Bytes("abc")));
  EXPECT_OK(file->Close());
  EXPECT_EQ(Get("file"), "abc");
}

TEST_P(StorageConformance, AClosedFileRefusesEverything) {
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", 0));
  ASSERT_OK(file->Close());
  const std::string where = storage_->Describe("file");
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  ExpectError(file->WriteAt(0, Bytes("abc")), kCode, "WriteAt", where);
  ExpectError(file->Sync(), kCode, "Sync", where);
  ExpectError(file->Close(), kCode, "Close", where);
}

TEST_P(StorageConformance, CreateReplacesAndOldReadersKeepWhatTheyHave) {
  Put("file", "the old, longer contents");
  ASSERT_OK_AND_ASSIGN(auto old_reader, storage_->Open("file"));
  Put("file", "new");
  EXPECT_EQ(Get("file"), "new");
  std::string out(old_reader->size_bytes(), '\0');
  const absl::Status read = old_reader->ReadAt(0, Bytes(out));
  if (!traits().readers_keep_replaced_files) {
    ExpectError(read, absl::StatusCode::kUnavailable, "ReadAt", storage_->Describe("file"));
    return;
  }
  ASSERT_OK(read);
  EXPECT_EQ(out, "the old, longer contents");
}

TEST_P(StorageConformance, ReadAllIsBounded) {
  Put("file", "12345");
  EXPECT_EQ(*ReadAll(*storage_, "file", 5), "12345");
  const absl::Status status = ReadAll(*storage_, "file", 4).status();
  ExpectError(status, absl::StatusCode::kResourceExhausted, "5 bytes", storage_->Describe("file"));
}

TEST_P(StorageConformance, ThreadsWriteAndReadOneFile) {
  constexpr int kThreads = 4;
  constexpr size_t kPiece = 100'003;  // not aligned: neighbours share blocks
  constexpr int kPieces = 24;
  const std::string contents = Pattern(kPiece * kPieces, 77);
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", contents.size()));
  const absl::Status written = RunTasks(kThreads, kPieces, [&](int, size_t i) {
    return file->WriteAt(i * kPiece, Bytes(std::string_view(contents).substr(i * kPiece, kPiece)));
  });
  EXPECT_OK(written);
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Close());
  ASSERT_OK_AND_ASSIGN(auto reader, storage_->Open("file"));
  std::string found(contents.size(), '\0');
  const absl::Status read = RunTasks(kThreads, kPieces, [&](int, size_t i) {
    return reader->ReadAt(i * kPiece, Bytes(found).subspan(i * kPiece, kPiece));
  });
  EXPECT_OK(read);
  ExpectSameBytes(found, contents, "threads");
}

TEST_P(StorageConformance, AByteIsWrittenOnce) {
  const std::string contents = Pattern(300'000, 9), other = Pattern(300'000, 10);
  ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", contents.size()));
  const auto write = [&](uint64_t offset, size_t size, const std::string& from) {
    return file->WriteAt(offset, Bytes(std::string_view(from).substr(offset, size)));
  };
  const std::unique_ptr<PendingIo> started =
      file->StartWriteAt(0, Bytes(std::string_view(contents).substr(0, 70'000)), {});
  ASSERT_OK(write(100'000, 100'000, contents));
  ASSERT_OK(started->Wait());
  struct Range {
    uint64_t offset, size;
  };
  for (const Range& range : {Range{0, 1},
                             {69'999, 10},
                             {30'000, 1'000},
                             {99'999, 2},
                             {100'000, 100'000},
                             {199'999, 100'001},
                             {150'000, 1},
                             {0, 300'000},
                             {80'000, 200'000},
                             {50'000, 60'000}}) {
    const absl::Status refused = write(range.offset, range.size, other);
    ExpectError(refused, absl::StatusCode::kFailedPrecondition, "WriteAt",
                storage_->Describe("file"));
    const std::string bytes = absl::StrCat("[", range.offset, ", ", range.offset + range.size, ")");
    EXPECT_NE(refused.message().find(bytes), std::string::npos) << refused;
    EXPECT_EQ(
        file->StartWriteAt(range.offset,
                           Bytes(std::string_view(other).substr(range.offset, range.size)), {})
            ->Wait()
            .code(),
        absl::StatusCode::kFailedPrecondition);
  }
  ASSERT_OK(write(70'000, 30'000, contents));
  ASSERT_OK(write(200'000, 100'000, contents));
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Close());
  ExpectSameBytes(Get("file"), contents, "once");
}

// Compared with a string: several threads write what a file of elements of different sizes is cut
// into, with gaps.
TEST_P(StorageConformance, RandomWritesAtOnceAgreeWithAString) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  AlignedBuffer aligned = *AlignedBuffer::Allocate(400'000);
  for (int round = 0; round < 12; ++round) {
    struct Range {
      uint64_t begin, end;
      size_t shift;  // of the memory
      bool starts;   // a write that does not wait
    };
    std::vector<Range> ranges;
    const uint64_t length = uint64_t{1} << (10 + below(10));
    for (uint64_t end = 0; end < length;) {
      const uint64_t begin = end + (below(3) == 0 ? below(6'000) : 0);
      const uint64_t unit = below(3) == 0 ? kIoAlignmentBytes : uint64_t{1} << below(4);
      const uint64_t size = below(4) == 0 ? below(200'000) : below(9'000);
      end = std::max(begin + 1, (begin + size) / unit * unit);
      ranges.push_back({begin, end, below(2) * below(64), below(2) == 0});
    }
    const uint64_t size_bytes = ranges.back().end;
    const std::string contents = Pattern(size_bytes, random());
    std::string expected(size_bytes, '\0');
    for (const Range& range : ranges) {
      expected.replace(range.begin, range.end - range.begin, contents, range.begin,
                       range.end - range.begin);
    }
    if (below(2) == 0) std::ranges::shuffle(ranges, random);
    ASSERT_OK_AND_ASSIGN(auto file, storage_->Create("file", below(4) == 0 ? 0 : size_bytes));
    const absl::Status written = RunTasks(4, ranges.size(), [&](int, size_t i) -> absl::Status {
      const Range& range = ranges[i];
      const size_t size = range.end - range.begin;
      AlignedBuffer memory = *AlignedBuffer::Allocate(range.shift + size);
      const std::span<std::byte> data = memory.span().subspan(range.shift, size);
      std::ranges::copy(Bytes(std::string_view(contents)).subspan(range.begin, size), data.begin());
      return range.starts ? file->StartWriteAt(range.begin, data, {})->Wait()
                          : file->WriteAt(range.begin, data);
    });
    ASSERT_OK(written);
    if (below(4) > 0) ASSERT_OK(file->Sync());
    ASSERT_OK(file->Close());
    ExpectSameBytes(Get("file"), expected, "whole, round " + std::to_string(round));
    ASSERT_OK_AND_ASSIGN(auto reader, storage_->Open("file"));
    for (int read = 0; read < 20; ++read) {
      const uint64_t offset = below(expected.size() + 1);
      const size_t size = below(std::min<uint64_t>(expected.size() - offset, 390'000) + 1);
      const size_t shift = below(64);
      ASSERT_OK(reader->ReadAt(offset, aligned.span().subspan(shift, size)));
      const auto* found = reinterpret_cast<const char*>(aligned.data() + shift);
      ExpectSameBytes({found, size}, std::string_view(expected).substr(offset, size), "part");
    }
  }
}

}  // namespace
}  // namespace tessera
