#include "tokenizer/files/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/byte_order.h"
#include "base/testing.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/test_data.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"

namespace tessera {
namespace {

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

GgufVocabulary Described(const Tokenizer& tokenizer, int64_t ids) {
  auto vocabulary = OrFail(DescribeForGguf(tokenizer, ids));
  EXPECT_EQ(vocabulary.tokens.size(), ids);
  EXPECT_EQ(vocabulary.types.size(), ids);
  return vocabulary;
}

TEST(GgufVocabularyTest, BytesInALargerModel) {
  const GgufVocabulary vocabulary = Described(ByteTokenizer(), 300);
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre, "gpt-2");
  EXPECT_EQ(vocabulary.tokens['a'], "a");
  EXPECT_EQ(vocabulary.tokens[' '], "\xC4\xA0") << "as GPT-2's files write a space";
  EXPECT_EQ(vocabulary.tokens[256], "<|endoftext|>");
  EXPECT_EQ(vocabulary.types[256], kControl);
  EXPECT_EQ(vocabulary.tokens[299], "[PAD299]");
  EXPECT_EQ(vocabulary.types[299], kUnused);
  EXPECT_EQ(vocabulary.end_of_text, 256);
  EXPECT_FALSE(vocabulary.begin_of_text.has_value());
  EXPECT_TRUE(vocabulary.scores.empty());
}

TEST(GgufVocabularyTest, MergesAreInTheirOrder) {
  const std::string merges = TestFile("gpt2/merges.txt");
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       ParseGpt2Files("", TestFile("gpt2/vocab.json"), merges));
  const GgufVocabulary vocabulary = Described(*tokenizer, tokenizer->vocab_size());
  EXPECT_EQ(vocabulary.pre, "gpt-2");
  const size_t begin = merges.find('\n') + 1;  // after a comment
  ASSERT_FALSE(vocabulary.merges.empty());
  EXPECT_EQ(vocabulary.merges[0], merges.substr(begin, merges.find('\n', begin) - begin));
}

TEST(GgufVocabularyTest, WhereTextBeginsIsSaid) {
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       ParseTokenizerJson("", TestFile("llama3/tokenizer.json")));
  const GgufVocabulary vocabulary = Described(*tokenizer, tokenizer->vocab_size());
  EXPECT_EQ(vocabulary.pre, "llama-bpe");
  EXPECT_TRUE(vocabulary.begin_of_text.has_value());
  EXPECT_EQ(vocabulary.begin_of_text, tokenizer->begin_of_text());
}

// A tokenizer of bytes, in which no merges make "abc".
absl::StatusOr<GgufVocabulary> WithAWholePiece(std::string_view regex, bool whole_pieces_first) {
  BpeVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  vocabulary.tokens.emplace_back("abc");
  vocabulary.split = *FindSplitRules(regex);
  vocabulary.whole_pieces_first = whole_pieces_first;
  vocabulary.added = {{.text = "<|endoftext|>", .id = 257, .special = true},
                      {.text = "<user>", .id = 258}};
  const auto tokenizer = OrFail(ParseTokenizerJson("", WriteTokenizerJson(vocabulary)));
  return DescribeForGguf(*tokenizer, 259);
}

TEST(GgufVocabularyTest, RulesHaveNamesWithAndWithoutWholePieces) {
  const struct {
    std::string_view regex;
    bool whole_pieces_first;
    const char* pre;
  } cases[] = {{kGpt2Regex, false, "gpt-2"},
               {kLlama3Regex, true, "llama-bpe"},
               {kLlama3Regex, false, "smaug-bpe"},
               {kCl100kRegex, false, "dbrx"}};
  for (const auto& [regex, whole_pieces_first, pre] : cases) {
    ASSERT_OK_AND_ASSIGN(const auto vocabulary, WithAWholePiece(regex, whole_pieces_first));
    EXPECT_EQ(vocabulary.pre, pre);
    EXPECT_EQ(vocabulary.types[258], kUserDefined);
  }
  const auto refused = WithAWholePiece(kGpt2Regex, true);
  EXPECT_TRUE(absl::IsUnimplemented(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("merges do not make all tokens"), std::string::npos);
}

TEST(GgufVocabularyTest, WhatLlamaCppDoesNotDoIsRefused) {
  nlohmann::json normalizing = TestJson("gpt2_json/tokenizer.json");
  normalizing["normalizer"] = {{"type", "NFC"}};
  const std::pair<std::string, const char*> cases[] = {
      {normalizing.dump(), "does not normalise texts"},
      {TestFile("llama2/tokenizer.json"), "of characters has no scores"}};
  for (const auto& [json, said] : cases) {
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, ParseTokenizerJson("", json));
    const absl::Status refused = DescribeForGguf(*tokenizer, tokenizer->vocab_size()).status();
    EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
    EXPECT_NE(refused.message().find(said), std::string::npos) << refused;
  }
}

// Fields of a protocol buffer.
std::string Number(int field, uint8_t value) {
  return {static_cast<char>(field << 3), static_cast<char>(value)};
}
std::string Bytes(int field, const std::string& bytes) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string Piece(const std::string& text, float score, int32_t type) {
  std::string fields = Bytes(1, text);
  fields += static_cast<char>(2 << 3 | 5);
  AppendLittleEndian(std::bit_cast<uint32_t>(score), fields);
  return Bytes(1, fields + Number(3, static_cast<uint8_t>(type)));
}

TEST(GgufVocabularyTest, PiecesHaveScoresAndTypes) {
  std::string model =
      Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl);
  for (int byte = 0; byte < 256; ++byte)
    model += Piece(absl::StrFormat("<0x%02X>", byte), 0, kByte);
  model += Piece("\xE2\x96\x81t", -1.5, kNormal) + Piece("a\xE2\x96\x81", 0, kUserDefined);
  // BPE with byte fallback, whose field has a number of two bytes.
  model += Bytes(2, Number(3, 2) + "\x98\x02\x01");
  model += Bytes(3, Number(3, 1) + Number(4, 0));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, SentencePieceTokenizer::Parse("", model));
  const GgufVocabulary vocabulary = Described(*tokenizer, 262);
  EXPECT_EQ(vocabulary.model, "llama");
  EXPECT_EQ(vocabulary.pre, "default");
  EXPECT_TRUE(vocabulary.adds_space_prefix);
  EXPECT_TRUE(vocabulary.merges.empty());
  EXPECT_EQ(vocabulary.unknown, 0);
  EXPECT_EQ(vocabulary.begin_of_text, 1);
  EXPECT_EQ(vocabulary.end_of_text, 2);
  EXPECT_EQ(vocabulary.types[1], kControl);
  EXPECT_EQ(vocabulary.tokens[3 + '\n'], "<0x0A>");
  EXPECT_EQ(vocabulary.types[3 + '\n'], kByte);
  EXPECT_EQ(vocabulary.tokens[259], "\xE2\x96\x81t");
  EXPECT_EQ(vocabulary.scores[259], -1.5f);
  EXPECT_EQ(vocabulary.tokens[260], "a ") << "as it is in a text";
  EXPECT_EQ(vocabulary.types[260], kUserDefined);
  EXPECT_EQ(vocabulary.tokens[261], "[PAD261]");
  EXPECT_LT(vocabulary.scores[261], -1000);
}

}  // namespace
}  // namespace tessera
