#include "trainer/tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace tessera {
namespace {

std::string Slurp(const std::string& name) {
  std::ifstream file("trainer/tokenizer/testdata/sentencepiece/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The models and the ids are those of make_testdata.py.
TEST(SentencePieceTokenizerTest, IdsOfUnigramModelsAreThoseOfTheOriginal) {
  for (const std::string name : {"unigram", "unigram_bytes"}) {
    const auto tokenizer = SentencePieceTokenizer::Parse(name, Slurp(name + ".model"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const nlohmann::json cases = nlohmann::json::parse(Slurp(name + ".ids.json"));
    ASSERT_GT(cases.size(), 200u);
    for (const nlohmann::json& one : cases) {
      const std::string text = one["text"].get<std::string>();
      EXPECT_EQ(*(*tokenizer)->Encode(text), one["ids"].get<std::vector<int32_t>>()) << one["text"];
    }
    EXPECT_EQ((*tokenizer)->EncodablePrefix("two words"), 0u);
    EXPECT_EQ((*tokenizer)->Files().at(0).contents, Slurp(name + ".model"));
  }
}

TEST(SentencePieceTokenizerTest, WhatNormalizationRemovesIsLost) {
  const auto lossy = SentencePieceTokenizer::Parse("m", Slurp("unigram.model"));
  ASSERT_TRUE(lossy.ok()) << lossy.status();
  const auto through = [](const Tokenizer& tokenizer, const std::string& text) {
    return *tokenizer.Decode(*tokenizer.Encode(text));
  };
  EXPECT_EQ(through(**lossy, "  the \xC3\x89nd  of  the \xC3\xA9nd "),
            "the \xEF\xBF\xBDnd of the end");
  const auto bytes = SentencePieceTokenizer::Parse("m", Slurp("unigram_bytes.model"));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(through(**bytes, "the \xC3\x89nd \xE4\xB8\xAD "), "the \xC3\x89nd \xE4\xB8\xAD ");
}

}  // namespace
}  // namespace tessera
