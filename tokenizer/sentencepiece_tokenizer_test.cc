#include "tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tokenizer/hugging_face_files.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json_writer.h"

namespace tessera {
namespace {

std::string Slurp(const std::string& name) {
  std::ifstream file("tokenizer/testdata/sentencepiece/" + name, std::ios::binary);
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

SentencePieceModel BpeModel(std::vector<SentencePieceModel::Piece> pieces) {
  SentencePieceModel model{.pieces = std::move(pieces),
                           .model_type = SentencePieceModelType::kBpe,
                           .byte_fallback = true,
                           .add_dummy_prefix = false,
                           .remove_extra_whitespaces = false};
  return model;
}

TEST(SentencePieceTokenizerTest, TokenizerJsonOfPieces) {
  const auto written = WriteTokenizerJson(BpeModel({{"<unk>", 0, SentencePieceType::kUnknown},
                                                    {"<s>", 0, SentencePieceType::kControl},
                                                    {"ab", -1},
                                                    {"abc", -3},
                                                    {"bc", -2},
                                                    {"a", -4},
                                                    {"b", -4},
                                                    {"c", -4},
                                                    {"ca", -7},
                                                    {"cab", -8},
                                                    {"cba", -9},  // no text becomes it
                                                    {"cabb", -0.5}}));
  ASSERT_TRUE(written.ok()) << written.status();
  const nlohmann::json json = nlohmann::json::parse(*written);
  EXPECT_EQ(json["model"]["merges"],
            nlohmann::json::parse(
                R"([["cab","b"],["a","b"],["b","c"],["ab","c"],["c","a"],["c","ab"]])"));
  EXPECT_EQ(json["model"]["vocab"]["abc"], 3);
  EXPECT_EQ(json["model"]["unk_token"], "<unk>");
  EXPECT_EQ(json["model"]["byte_fallback"], true);
  EXPECT_EQ(json["model"]["fuse_unk"], true);
  EXPECT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
}

TEST(SentencePieceTokenizerTest, PiecesThatTokenizerJsonCannotHave) {
  const auto expect_refused = [](std::vector<SentencePieceModel::Piece> pieces) {
    const auto written = WriteTokenizerJson(BpeModel(std::move(pieces)));
    EXPECT_TRUE(absl::IsUnimplemented(written.status())) << written.status();
  };
  expect_refused({{"a", -1}, {"a", -2}});
  expect_refused({{"\xFF", -1}});
  expect_refused({{"a", -1}, {"b", -1}, {"ab", -3}, {"ba", -3}});
  expect_refused({{"a", -1}, {"ab", -3}});
  const auto unigram = SentencePieceTokenizer::Parse("m", Slurp("unigram.model"));
  const auto files = HuggingFaceFiles(**unigram);
  EXPECT_TRUE(absl::IsUnimplemented(files.status())) << files.status();
}

}  // namespace
}  // namespace tessera
