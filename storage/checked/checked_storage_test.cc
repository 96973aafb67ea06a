#include "storage/checked/checked_storage.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

#include "base/testing.h"
#include "base/threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"
#include "zlib.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRecordOffset = 1000, kRecordBytes = 300'000;

class RecordChecksTest : public ::testing::Test {
 protected:
  RecordChecksTest() : contents_(kRecordOffset + kRecordBytes + 500, '\0') {
    for (char& c : contents_) c = static_cast<char>(random_());
    record_.crc32 =
        crc32_z(0, reinterpret_cast<const Bytef*>(contents_.data() + kRecordOffset), kRecordBytes);
  }

  // The file, after a byte of it has been changed where `damaged` is set.
  std::unique_ptr<ReadableFile> Open(bool damaged) {
    if (damaged) contents_[kRecordOffset + random_() % kRecordBytes] ^= 1;
    auto base = std::make_shared<MemoryStorage>();
    EXPECT_OK(WriteAll(*base, "file", contents_));
    storage_ = std::make_unique<CheckedStorage>(base);
    auto file = OrFail(storage_->Open("file"));
    file->stated_checksums()->Add(record_);
    return file;
  }

  // Reads the file in pieces that overlap, in any order and on several threads.
  std::vector<absl::Status> ReadInPieces(const ReadableFile& file) {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (uint64_t begin = 0; begin < contents_.size();) {
      const uint64_t end = std::min<uint64_t>(contents_.size(), begin + 1 + random_() % 5000);
      ranges.emplace_back(begin, std::min<uint64_t>(contents_.size(), end + random_() % 100));
      begin = end;
    }
    std::ranges::shuffle(ranges, random_);
    std::vector<absl::Status> statuses(ranges.size());
    EXPECT_OK(RunTasks(4, ranges.size(), [&](int, size_t i) {
      const auto [begin, end] = ranges[i];
      std::vector<std::byte> bytes(end - begin);
      statuses[i] =
          i % 2 == 0 ? file.ReadAt(begin, bytes) : file.StartReadAt(begin, bytes, false)->Wait();
      return absl::OkStatus();
    }));
    return statuses;
  }

  std::mt19937_64 random_{TestSeed()};
  std::string contents_;
  StoredRecord record_ = {"data/0", kRecordOffset, kRecordBytes, 0};
  std::unique_ptr<CheckedStorage> storage_;
};

TEST_F(RecordChecksTest, IsCheckedWhicheverWayItIsRead) {
  for (int i = 0; i < 10; ++i) {
    const auto good = Open(/*damaged=*/false);
    for (const absl::Status& status : ReadInPieces(*good)) EXPECT_OK(status);
  }
  for (int i = 0; i < 10; ++i) {
    const std::string whole = contents_;
    const auto damaged = Open(/*damaged=*/true);
    const std::vector<absl::Status> statuses = ReadInPieces(*damaged);
    contents_ = whole;
    const auto found = std::ranges::find_if(statuses, [](const auto& s) { return !s.ok(); });
    ASSERT_NE(found, statuses.end());
    EXPECT_EQ(found->code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(found->message()),
                HasSubstr("file: record data/0 of 300000 bytes at offset 1000: its CRC-32 is "));
    std::byte byte;
    EXPECT_FALSE(damaged->ReadAt(kRecordOffset, std::span(&byte, 1)).ok());
    EXPECT_OK(damaged->ReadAt(0, std::span(&byte, 1)));
  }
}

TEST_F(RecordChecksTest, OnlyWhatIsNotReadAnywayIsCheckedApart) {
  const auto file = Open(/*damaged=*/true);
  using Ranges = std::map<std::string, CheckedStorage::Ranges>;
  constexpr uint64_t kEnd = kRecordOffset + kRecordBytes;
  const Ranges all = {{"file", {{kRecordOffset + 7, kEnd}, {kRecordOffset, kRecordOffset + 7}}}};
  EXPECT_TRUE(storage_->CheckOthers(all).empty());
  EXPECT_EQ(storage_->CheckOthers({{"file", {{kRecordOffset, kEnd - 1}}}}).size(), 1);
  EXPECT_EQ(storage_->CheckOthers({}).size(), 1);
  EXPECT_TRUE(storage_->HasChecksum("file", kRecordOffset, kEnd));
  EXPECT_FALSE(storage_->HasChecksum("file", kRecordOffset, kEnd + 1));
  EXPECT_FALSE(storage_->HasChecksum("file", 0, 1));
  EXPECT_TRUE(storage_->UncheckedFiles().empty());
}

}  // namespace
}  // namespace tessera
