#include "trainer/data/token_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/testing.h"
#include "trainer/data/test_files.h"

namespace tessera {
namespace {

void WriteTokens(const std::string& path, TokenFormat format, const std::vector<int32_t>& tokens) {
  ASSERT_OK_AND_ASSIGN(auto writer, TokenFileWriter::Create(path, format));
  ASSERT_OK(writer->Append(tokens));
  ASSERT_OK(writer->Close());
}

// Header of three words and a body.
std::string Contents(int32_t magic, int32_t version, int32_t count, std::string_view body) {
  return Int32Header({magic, version, count}) + std::string(body);
}

void ExpectDataLoss(const std::string& path, const std::vector<std::string>& parts) {
  const auto file = TokenFile::Open(path);
  ASSERT_TRUE(absl::IsDataLoss(file.status())) << file.status();
  EXPECT_NE(MessageOf(file.status()).find(path), std::string::npos) << file.status();
  for (const std::string& part : parts) {
    EXPECT_NE(MessageOf(file.status()).find(part), std::string::npos) << file.status();
  }
}

TEST(TokenFileTest, LiteralBytes) {
  const TestFolder folder;
  WriteTokens(folder.File("gpt2"), TokenFormat::kGpt2, {1, 0x1234, 65535});
  EXPECT_EQ(Slurp(folder.File("gpt2")),
            Contents(20240520, 1, 3, std::string_view("\x01\0\x34\x12\xFF\xFF", 6)));
  WriteTokens(folder.File("llama3"), TokenFormat::kLlama3, {1, 128255});
  EXPECT_EQ(Slurp(folder.File("llama3")),
            Contents(20240801, 7, 2, std::string_view("\x01\0\0\0\xFF\xF4\x01\0", 8)));
}

TEST(TokenFileTest, RoundTripOfAnyRange) {
  const TestFolder folder;
  for (const TokenFormat format : {TokenFormat::kGpt2, TokenFormat::kLlama3}) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 100; ++i) tokens.push_back(i * 523 % 50000);
    WriteTokens(folder.File("f"), format, tokens);
    ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
    EXPECT_EQ(file->format(), format);
    EXPECT_EQ(file->count(), 100);
    for (int64_t first = 0; first <= 100; first += 7) {
      for (int64_t n = 0; first + n <= 100; n += 5) {
        std::vector<int32_t> read(n, -1);
        ASSERT_OK(file->Read(first, 50000, read));
        EXPECT_EQ(read, std::vector<int32_t>(tokens.begin() + first, tokens.begin() + first + n));
      }
    }
    std::vector<int32_t> two(2);
    EXPECT_TRUE(absl::IsOutOfRange(file->Read(99, 50000, two)));
    EXPECT_TRUE(absl::IsOutOfRange(file->Read(-1, 50000, two)));
    EXPECT_TRUE(absl::IsOutOfRange(file->Read(INT64_MAX, 50000, two)));
  }
}

TEST(TokenFileTest, EveryHeaderFieldIsChecked) {
  const TestFolder folder;
  const std::string body("\1\0\2\0", 4);
  ExpectDataLoss(folder.Write("magic", Contents(20240521, 1, 2, body)),
                 {"offset 0", "20240520", "20240521"});
  ExpectDataLoss(folder.Write("version", Contents(20240520, 2, 2, body)),
                 {"offset 4", "expected 1", "found 2"});
  ExpectDataLoss(folder.Write("version7", Contents(20240801, 1, 1, body)),
                 {"offset 4", "expected 7", "found 1"});
  ExpectDataLoss(folder.Write("negative", Contents(20240520, 1, -1, body)),
                 {"offset 8", "found -1"});
  ExpectDataLoss(folder.Write("few", Contents(20240520, 1, 1, body)),
                 {"offset 1026", "after the last token", "1028"});
  ExpectDataLoss(folder.Write("many", Contents(20240520, 1, 3, body)),
                 {"offset 1028", "truncated", "1030"});
  ExpectDataLoss(folder.Write("huge", Contents(20240801, 7, INT32_MAX, body)),
                 {"truncated", "8589935612"});
  ExpectDataLoss(folder.Write("empty", ""), {"offset 0", "truncated"});
  ExpectDataLoss(folder.Write("text", std::string(2000, 'x')), {"offset 0", "magic"});
}

TEST(TokenFileTest, TruncationsAreReported) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, {1, 2, 3, 4});
  const std::string whole = Slurp(folder.File("f"));
  for (size_t size = 0; size < whole.size(); size += size < 32 || size > 1016 ? 1 : 8) {
    ExpectDataLoss(folder.Write("cut", whole.substr(0, size)), {"truncated"});
  }
}

TEST(TokenFileTest, IdsBeyondTheVocabularyNameTheirPlace) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, {10, 11, 99, 12});
  ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
  std::vector<int32_t> read(4);
  EXPECT_OK(file->Read(0, 100, read));
  const absl::Status status = file->Read(1, 99, std::span(read).first(3));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(MessageOf(status),
            folder.File("f") +
                " at offset 1028: token id 99 at position 2 is outside the vocabulary "
                "(vocab_size 99)");
}

TEST(TokenFileTest, ShrinkingWhileOpenIsAnError) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, std::vector<int32_t>(5000, 7));
  ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
  std::filesystem::resize_file(folder.File("f"), 3000);
  std::vector<int32_t> read(5000);
  EXPECT_TRUE(absl::IsDataLoss(file->Read(0, 100, read)));
}

TEST(TokenFileTest, WriterRefusesWhatTheFormatCannotHold) {
  const TestFolder folder;
  ASSERT_OK_AND_ASSIGN(auto writer, TokenFileWriter::Create(folder.File("f"), TokenFormat::kGpt2));
  const std::vector<int32_t> large = {1, 65536}, negative = {-1};
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Append(large)));
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Append(negative)));
  writer.reset();
  EXPECT_TRUE(absl::IsNotFound(TokenFile::Open(folder.File("f")).status()));
}

TEST(TokenFileTest, FingerprintSeesContentNotName) {
  const TestFolder folder;
  std::vector<int32_t> tokens(10000, 3);
  const auto fingerprint = [&](const std::string& name, TokenFormat format) {
    WriteTokens(folder.File(name), format, tokens);
    const auto file = TokenFile::Open(folder.File(name));
    return std::pair(*(*file)->SampledFingerprint(), (*file)->CompleteFingerprint());
  };
  const auto differs = [](const auto& a, const auto& b) {
    return a.first != b.first && a.second != b.second;
  };
  const auto base = fingerprint("a", TokenFormat::kGpt2);
  EXPECT_EQ(fingerprint("b", TokenFormat::kGpt2), base);
  EXPECT_TRUE(differs(fingerprint("b", TokenFormat::kLlama3), base));
  tokens[9999] = 4;
  EXPECT_TRUE(differs(fingerprint("b", TokenFormat::kGpt2), base));
  tokens[9999] = 3;
  tokens.push_back(3);
  EXPECT_TRUE(differs(fingerprint("b", TokenFormat::kGpt2), base));
}

TEST(TokenFileTest, NoTokenOfALongFileEscapesItsFingerprint) {
  const TestFolder folder;
  std::vector<int32_t> tokens(10 << 20);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 50000);
  WriteTokens(folder.File("a"), TokenFormat::kGpt2, tokens);
  tokens[5'000'000] ^= 1;
  WriteTokens(folder.File("b"), TokenFormat::kGpt2, tokens);
  const auto a = TokenFile::Open(folder.File("a")), b = TokenFile::Open(folder.File("b"));
  EXPECT_EQ(*(*a)->SampledFingerprint(), *(*b)->SampledFingerprint()) << "a sample hit it";
  EXPECT_NE((*a)->CompleteFingerprint(), (*b)->CompleteFingerprint());
  EXPECT_NE((*a)->CompleteFingerprint(), 0u);
}

// A disk may return wrong bytes without an error.
TEST(TokenFileTest, DamageIsNoticedWhereItIsReadAndNowhereElse) {
  const TestFolder folder;
  constexpr int64_t kCount = 3 * kChecksumChunkBytes / 2;  // three chunks and a header
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, std::vector<int32_t>(kCount, 5));
  const std::string whole = Slurp(folder.File("f")), sums = Slurp(folder.File("f.crc32c"));
  for (const int64_t at : {int64_t{1024}, kChecksumChunkBytes - 1, kChecksumChunkBytes,
                           2 * kChecksumChunkBytes + 77, int64_t(whole.size()) - 1}) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    folder.Write("f", damaged);
    ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
    const int64_t chunk = at / kChecksumChunkBytes;
    std::vector<int32_t> one(1);
    for (int64_t token = 0; token < kCount; token += 100) {
      const absl::Status status = file->Read(token, 50000, one);
      const bool inside = (kTokenFileHeaderBytes + 2 * token) / kChecksumChunkBytes == chunk;
      EXPECT_EQ(absl::IsDataLoss(status), inside) << token << " " << status;
      if (!inside) continue;
      EXPECT_NE(MessageOf(status).find(folder.File("f") + " at offset " +
                                       std::to_string(chunk * kChecksumChunkBytes) +
                                       ": damaged: CRC-32C of "),
                std::string::npos)
          << status;
    }
    std::vector<int32_t> all(kCount);
    EXPECT_TRUE(absl::IsDataLoss(file->Read(0, 50000, all)));
  }
  EXPECT_EQ(Slurp(folder.File("f.crc32c")), sums);
}

TEST(TokenFileTest, AChunkIsCheckedOnce) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, std::vector<int32_t>(1000, 5));
  ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
  std::vector<int32_t> one(1);
  EXPECT_OK(file->Read(0, 50000, one));
  std::fstream(folder.File("f"), std::ios::in | std::ios::out).seekp(1024 + 2 * 999).put(6);
  EXPECT_OK(file->Read(999, 50000, one));
  EXPECT_EQ(one[0], 6);
}

TEST(TokenFileTest, AFileWithoutChecksumsIsReadAsItIs) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, {1, 2, 3});
  std::filesystem::remove(folder.File("f.crc32c"));
  ASSERT_OK_AND_ASSIGN(const auto file, TokenFile::Open(folder.File("f")));
  EXPECT_EQ(file->CompleteFingerprint(), 0u);
  std::vector<int32_t> read(3);
  EXPECT_OK(file->Read(0, 100, read));
  absl::Status kept;
  ASSERT_OK(file->MakeChecksums(kept));
  EXPECT_OK(kept);
  const auto again = TokenFile::Open(folder.File("f"));
  EXPECT_EQ((*again)->CompleteFingerprint(), file->CompleteFingerprint());
  EXPECT_NE((*again)->CompleteFingerprint(), 0u);
}

TEST(TokenFileTest, AWriterReplacesTheChecksumsToo) {
  const TestFolder folder;
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, {1, 2, 3});
  const std::string first = Slurp(folder.File("f.crc32c"));
  WriteTokens(folder.File("f"), TokenFormat::kGpt2, {1, 2, 4});
  EXPECT_NE(Slurp(folder.File("f.crc32c")), first);
  std::vector<int32_t> read(3);
  EXPECT_OK((*TokenFile::Open(folder.File("f")))->Read(0, 100, read));
}

TEST(TokenFileTest, FormatNames) {
  EXPECT_EQ(*TokenFormatFromName("gpt2"), TokenFormat::kGpt2);
  EXPECT_EQ(*TokenFormatFromName("llama3"), TokenFormat::kLlama3);
  EXPECT_TRUE(absl::IsInvalidArgument(TokenFormatFromName("gpt3").status()));
}

TEST(UnigramTest, MatchesTheFormula) {
  const std::vector<int64_t> model = {3, 0, 5}, counts = {1, 1, 2};
  EXPECT_NEAR(UnigramNatsPerToken(model, counts),
              -(std::log(4.0 / 11) + std::log(1.0 / 11) + 2 * std::log(6.0 / 11)) / 4, 1e-12);
}

}  // namespace
}  // namespace tessera
