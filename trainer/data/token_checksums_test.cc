#include "trainer/data/token_checksums.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <thread>

#include "base/testing.h"
#include "trainer/data/test_files.h"

namespace tessera {
namespace {

using namespace std::string_literals;

absl::StatusOr<std::optional<TokenChecksums>> ReadFor(const std::string& path) {
  const auto file = FileDescriptor::OpenForReading(path);
  EXPECT_OK(file);
  return ReadTokenChecksums(path, *file);
}

TokenChecksums MakeFor(const std::string& path) {
  const auto file = FileDescriptor::OpenForReading(path);
  return OrFail(MakeTokenChecksums(path, *file));
}

TEST(TokenChecksumsTest, LiteralBytes) {
  // CRC-32C of "123456789" is 0xE3069283 (RFC 3720).
  const TokenChecksums checksums{
      .size_bytes = 9, .modified_ns = 0x0102, .chunk_crc32c = {0xE3069283}};
  EXPECT_EQ(EncodeTokenChecksums(checksums).substr(0, 36),
            "TOKSUMS\n"
            "\x01\0\0\0"
            "\0\0\x01\0"
            "\x09\0\0\0\0\0\0\0"
            "\x02\x01\0\0\0\0\0\0"
            "\x83\x92\x06\xE3"s);
  EXPECT_EQ(EncodeTokenChecksums(checksums).size(), 40u);
  ASSERT_OK_AND_ASSIGN(const auto decoded,
                       DecodeTokenChecksums("f", EncodeTokenChecksums(checksums)));
  EXPECT_EQ(decoded.size_bytes, 9);
  EXPECT_EQ(decoded.modified_ns, 0x0102);
  EXPECT_EQ(decoded.chunk_crc32c, checksums.chunk_crc32c);
}

TEST(TokenChecksumsTest, EveryFlippedByteAndEveryOtherLengthIsDataLoss) {
  const std::string bytes = EncodeTokenChecksums({.size_bytes = 70000, .chunk_crc32c = {1, 2}});
  ASSERT_OK(DecodeTokenChecksums("f", bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 0x20;
    EXPECT_TRUE(absl::IsDataLoss(DecodeTokenChecksums("f", damaged).status())) << i;
    EXPECT_TRUE(absl::IsDataLoss(DecodeTokenChecksums("f", bytes.substr(0, i)).status())) << i;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeTokenChecksums("f", bytes + "1234").status()));
}

TEST(TokenChecksumsTest, ImpossibleSizesAreDataLossThoughTheChecksumIsRight) {
  for (const int64_t size : {int64_t{-1}, int64_t{0}, int64_t{65536}, int64_t{131073}, INT64_MAX}) {
    const std::string bytes = EncodeTokenChecksums({.size_bytes = size, .chunk_crc32c = {1, 2}});
    const absl::Status status = DecodeTokenChecksums("f", bytes).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << size;
    EXPECT_NE(MessageOf(status).find("f at offset 16: size_bytes"), std::string::npos) << status;
  }
}

TEST(TokenChecksumsTest, HoweverAFileIsCutIntoPiecesItsChecksumsAreTheSame) {
  const TestFolder folder;
  std::string contents(3 * kChecksumChunkBytes + 5, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * i >> 7);
  const TokenChecksums whole = MakeFor(folder.Write("f", contents));
  EXPECT_EQ(whole.chunk_crc32c.size(), 4u);
  for (const size_t piece : {1000, 65536, 70000, 1 << 20}) {
    TokenChecksumBuilder builder;
    std::string blank = contents;
    blank.replace(0, 1024, 1024, 'x');  // room for the header
    const auto bytes = std::as_bytes(std::span(blank));
    for (size_t at = 0; at < bytes.size(); at += piece) {
      builder.Append(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
    const TokenChecksums built = builder.Finish(std::as_bytes(std::span(contents)).first(1024));
    EXPECT_EQ(built.chunk_crc32c, whole.chunk_crc32c) << piece;
    EXPECT_EQ(built.size_bytes, whole.size_bytes);
    EXPECT_EQ(built.Fingerprint(), whole.Fingerprint());
  }
}

// A file of another time, as one that is written over while it is read has.
TEST(TokenChecksumsTest, AFileThatChangesWhileItIsReadHasNone) {
  const TestFolder folder;
  const std::string path = folder.Write("f", std::string(1 << 20, 'x'));
  ASSERT_OK_AND_ASSIGN(const auto file, FileDescriptor::OpenForReading(path));
  std::jthread writer([&](const std::stop_token& stop) {
    for (int second = 1; !stop.stop_requested(); ++second) {
      const timespec times[2] = {{.tv_sec = second}, {.tv_sec = second}};
      EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    }
  });
  absl::Status status;
  for (int attempt = 0; status.ok() && attempt < 1000; ++attempt) {
    status = MakeTokenChecksums(path, file).status();
  }
  EXPECT_EQ(status, absl::FailedPreconditionError(
                        path + " was changed while it was read for its checksums"));
}

TEST(TokenChecksumsTest, ChecksumsOfTheWriterHoldWhereverTheFilesGo) {
  const TestFolder folder;
  const std::string path = folder.Write("f", "contents");
  TokenChecksums checksums = MakeFor(path);
  checksums.modified_ns = 0;
  ASSERT_OK(WriteTokenChecksums(path, checksums));
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(5));
  const auto read = ReadFor(path);
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  // A different size means that the file was replaced or truncated.
  folder.Write("f", "other contents");
  const absl::Status status = ReadFor(path).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(MessageOf(status), path + ".crc32c at offset 16: size of " + path +
                                   " expected 8, found 14; without this file the tokens are not "
                                   "checked");
}

TEST(TokenChecksumsTest, ChecksumsOfAFileThatWasFoundEndWithIt) {
  const TestFolder folder;
  const std::string path = folder.Write("f", "contents");
  ASSERT_OK(WriteTokenChecksums(path, MakeFor(path)));
  EXPECT_TRUE(ReadFor(path)->has_value());
  // The same size at another time.
  folder.Write("f", "CONTENTS");
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  auto read = ReadFor(path);
  ASSERT_OK(read);
  EXPECT_FALSE(read->has_value());
  ASSERT_OK(RemoveTokenChecksums(path));
  read = ReadFor(path);
  ASSERT_OK(read);
  EXPECT_FALSE(read->has_value());
  EXPECT_OK(RemoveTokenChecksums(path)) << "nothing to remove is fine";
}

TEST(ContentHashTest, DoesNotDependOnHowBytesAreCut) {
  const std::string text = "The quick brown fox jumps over the lazy dog; 0123456789.";
  ContentHash whole;
  whole.Add(AsBytes(text));
  const uint64_t expected = whole.Finish();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ContentHash parts;
    parts.Add(AsBytes(std::string_view(text).substr(0, cut)));
    parts.Add(AsBytes(std::string_view(text).substr(cut)));
    EXPECT_EQ(parts.Finish(), expected) << cut;
  }
}

TEST(ContentHashTest, EveryBitAndTheLengthCount) {
  const std::string text = "0123456789ab";
  ContentHash base;
  base.Add(AsBytes(text));
  const uint64_t expected = base.Finish();
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ContentHash hash;
    hash.Add(AsBytes(flipped));
    EXPECT_NE(hash.Finish(), expected) << bit;
  }
  ContentHash longer;
  longer.Add(AsBytes(text + std::string(1, '\0')));
  EXPECT_NE(longer.Finish(), expected);
}

}  // namespace
}  // namespace tessera
