#include "tokenizer/files/tiktoken.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "tokenizer/files/load_tokenizer.h"

namespace tessera {
namespace {

// A file with as many tokens as a well-known one: all single bytes, then all pairs, then triples.
std::string TiktokenFile(int64_t tokens) {
  std::string file;
  for (int64_t rank = 0; rank < tokens; ++rank) {
    std::string token;
    const int64_t bytes = rank < 256 ? 1 : rank < 256 + 65536 ? 2 : 3;
    const int64_t number = rank - (bytes == 1 ? 0 : bytes == 2 ? 256 : 256 + 65536);
    for (int64_t i = bytes; i-- > 0;) token += static_cast<char>(number >> (8 * i));
    absl::StrAppend(&file, absl::Base64Escape(token), " ", rank, "\n");
  }
  return file;
}

// Reads a file with the number of tokens of a well-known one as that one, which has this CRC-32C.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> Made(int64_t tokens, uint32_t crc32c) {
  return ParseTiktoken("FILE", TiktokenFile(tokens), FindTiktokenEncoding(crc32c));
}

TEST(TiktokenTest, WellKnownFilesAreRecognised) {
  EXPECT_TRUE(IsTiktokenFile(TiktokenFile(300)));
  EXPECT_FALSE(IsTiktokenFile("#version: 0.2\n"));
  EXPECT_FALSE(IsTiktokenFile(""));
  ASSERT_OK_AND_ASSIGN(const auto llama3, Made(128000, 0x40871396));
  EXPECT_EQ(llama3->vocab_size(), 128256);
  EXPECT_EQ(llama3->end_of_text(), 128001);
  EXPECT_EQ(llama3->begin_of_text(), 128000);
  EXPECT_EQ(llama3->TokenText(128009), "<|eot_id|>");
  EXPECT_EQ(llama3->TokenText(128255), "<|reserved_special_token_245|>");
  ASSERT_OK_AND_ASSIGN(const auto cl100k, Made(100256, 0x2C0261B3));
  EXPECT_EQ(cl100k->vocab_size(), 100277);
  EXPECT_EQ(cl100k->end_of_text(), 100257);
  EXPECT_EQ(cl100k->TokenText(100256), "");
  ASSERT_OK_AND_ASSIGN(const auto gpt2, Made(50256, 0x70D99C18));
  EXPECT_EQ(gpt2->vocab_size(), 50257);
}

// Other programs' files have as many tokens, but split text in another way.
TEST(TiktokenTest, AFileIsKnownByItsContents) {
  for (const int64_t tokens : {1000, 50256, 50280, 100256, 128000}) {
    const absl::Status unknown = ParseTiktoken("FILE", TiktokenFile(tokens)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(unknown)) << tokens;
    EXPECT_NE(unknown.message().find("not one of those that are known"), std::string::npos)
        << unknown;
  }
}

TEST(TiktokenTest, AnotherClassInTheConfigurationIsRefused) {
  const TestFolder folder;
  folder.Write("arcade100k.tiktoken", TiktokenFile(300));
  folder.Write("tokenizer_config.json", R"({"tokenizer_class": "Arcade100kTokenizer"})");
  const absl::Status named = LoadTokenizer(folder.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(named)) << named;
  EXPECT_NE(named.message().find("Arcade100kTokenizer"), std::string::npos) << named;
}

TEST(TiktokenTest, DamagedLinesAreNamed) {
  const TiktokenEncoding encoding{.name = "small", .split = *FindSplitRules(kGpt2Regex)};
  const std::string file = TiktokenFile(300);
  for (const std::string line : {"AAAA", "AAAA x", "AAAA -1", "* 7", " 7", "AAAA 7 8",
                                 "AAAA 2000000000", "AAAA 99999999999"}) {
    const absl::Status status = ParseTiktoken("FILE", file + line + "\n", encoding).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << line;
    EXPECT_NE(status.message().find("line 301"), std::string::npos) << status;
  }
  const absl::Status twice = ParseTiktoken("FILE", file + "QUFB 7\n", encoding).status();
  EXPECT_NE(twice.message().find("rank 7 belongs to two tokens"), std::string::npos) << twice;
}

}  // namespace
}  // namespace tessera
