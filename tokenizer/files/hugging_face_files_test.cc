#include "tokenizer/files/hugging_face_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "base/testing.h"

namespace tessera {
namespace {

SentencePieceModel BpeModel(std::vector<SentencePieceModel::Piece> pieces) {
  SentencePieceModel model{.pieces = std::move(pieces),
                           .model_type = SentencePieceModelType::kBpe,
                           .byte_fallback = true,
                           .add_dummy_prefix = false,
                           .remove_extra_whitespaces = false};
  return model;
}

TEST(HuggingFaceFilesTest, TokenizerJsonOfPieces) {
  ASSERT_OK_AND_ASSIGN(const auto written,
                       WriteTokenizerJson(BpeModel({{"<unk>", 0, SentencePieceType::kUnknown},
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
                                                    {"cabb", -0.5}})));
  const nlohmann::json json = nlohmann::json::parse(written);
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

TEST(HuggingFaceFilesTest, PiecesThatTokenizerJsonCannotHave) {
  const auto expect_refused = [](std::vector<SentencePieceModel::Piece> pieces) {
    const auto written = WriteTokenizerJson(BpeModel(std::move(pieces)));
    EXPECT_TRUE(absl::IsUnimplemented(written.status())) << written.status();
  };
  expect_refused({{"a", -1}, {"a", -2}});
  expect_refused({{"\xFF", -1}});
  expect_refused({{"a", -1}, {"b", -1}, {"ab", -3}, {"ba", -3}});
  expect_refused({{"a", -1}, {"ab", -3}});
  expect_refused({{"a", -1}, {"x", 0, SentencePieceType::kUserDefined}});
}

}  // namespace
}  // namespace tessera
