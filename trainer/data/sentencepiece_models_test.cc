// Models of every kind that SentencePiece trains, against the library, id by id.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "compute/random/philox.h"
#include "tokenizer/hugging_face_files.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_reference.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/sentencepiece_training.h"
#include "tokenizer/tokenizer.h"
#include "trainer/data/default_corpus.h"
#include "trainer/data/file_util.h"

namespace tessera {
namespace {

using Settings = std::unordered_map<std::string, std::string>;

std::vector<std::string> Lines() {
  std::vector<std::string> lines;
  const std::vector<std::string> paths = *Glob(*DefaultCorpusPattern());
  const std::string text = *ReadFile(paths.front(), 16 << 20);
  for (size_t begin = 0; begin < text.size() && lines.size() < 1500;) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Characters that normalisation changes, spaces of many kinds, and what no model knows.
const std::vector<std::string>& Parts() {
  static const auto* parts = new std::vector<std::string>{"the",
                                                          "and",
                                                          "ing",
                                                          "er",
                                                          "e",
                                                          "t",
                                                          "a",
                                                          "$_",
                                                          "perl",
                                                          "Perl",
                                                          "1",
                                                          "42",
                                                          ".",
                                                          ",",
                                                          "->",
                                                          " ",
                                                          "  ",
                                                          "\n",
                                                          "\t",
                                                          "\r\n",
                                                          "\xC2\xA0",
                                                          "\xE3\x80\x80",
                                                          "\xE2\x80\x8B",
                                                          "\xE2\x96\x81",
                                                          "\xEF\xBC\xA1\xEF\xBC\xA2",
                                                          "\xEF\xAC\x81",
                                                          "\xE2\x91\xA0",
                                                          "\xC2\xBD",
                                                          "e\xCC\x81",
                                                          "\xC3\xA9",
                                                          "\xEF\xBD\xB6\xEF\xBE\x9E",
                                                          "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                                          "\xE4\xB8\xAD\xE6\x96\x87",
                                                          "\xF0\x9F\x98\x80",
                                                          "\xF0\x9F\x98\x80\xE2\x82\xAC",
                                                          "\xC2\xAD",
                                                          "\xEF\xBB\xBF",
                                                          "\xE2\x84\xA2",
                                                          "\xD0\x9F\xD1\x80",
                                                          "<user>",
                                                          "<us",
                                                          "=begin",
                                                          "\x01",
                                                          "\xFF",
                                                          "\xC3",
                                                          "<unk>",
                                                          "</s>",
                                                          "<0x41>"};
  return *parts;
}

std::vector<std::string> Texts() {
  std::vector<std::string> texts = {"", " ", "   ", "\xFF", "\xC2\xA0 ", "  two  words  "};
  for (uint64_t stream = 0; stream < 150; ++stream) {
    std::string text;
    for (uint64_t i = 0; i < 1 + stream; ++i) {
      text += Parts()[RandomWord({1, RandomUse::kSampling, stream}, i) % Parts().size()];
    }
    texts.push_back(std::move(text));
  }
  // Many ways to cut them have nearly the same score.
  for (size_t length = 1; length < 120; ++length) texts.emplace_back(length, "-=#"[length % 3]);
  const std::vector<std::string> lines = Lines();
  texts.insert(texts.end(), lines.begin(), lines.begin() + 300);
  texts.emplace_back();
  for (const std::string& line : lines) texts.back() += line + "\n";
  return texts;
}

std::string Trained(Settings settings) {
  settings.insert({{"num_threads", "1"}, {"minloglevel", "2"}, {"hard_vocab_limit", "false"}});
  std::string model, error;
  EXPECT_TRUE(TrainSentencePieceModel(Lines(), settings, &model, &error)) << error;
  return model;
}

double ScoreOf(const SentencePieceModel& model, const std::vector<int32_t>& ids) {
  double score = 0;
  for (const int32_t id : ids) score += model.pieces[id].score;
  return score;
}

// Of cuts whose scores differ by no more than their rounding, versions of the library choose
// different ones: the one that is linked compares them in double. (sentencepiece_tokenizer_test
// expects the ids of a newer one.)
void ExpectAsGood(const SentencePieceModel& model, const std::vector<int32_t>& ids,
                  const std::vector<int32_t>& expected, const std::string& text) {
  if (ids == expected) return;
  ASSERT_EQ(model.model_type, SentencePieceModelType::kUnigram) << text.substr(0, 300);
  EXPECT_EQ(ids.size(), expected.size()) << text.substr(0, 300);
  const double score = ScoreOf(model, expected);
  EXPECT_NEAR(ScoreOf(model, ids), score, 1e-6 * std::abs(score)) << text.substr(0, 300);
}

void ExpectSameIdsOf(const std::string& model) {
  const auto parsed = ParseSentencePieceModel("model", model);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto tokenizer = SentencePieceTokenizer::Parse("model", model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string& text : Texts()) {
    const std::vector<int32_t> ids = *(*tokenizer)->Encode(text);
    ExpectAsGood(*parsed, ids, ReferenceEncode(model, text), text);
    EXPECT_TRUE((*tokenizer)->Decode(ids).ok());
  }
}

void ExpectSameIds(const Settings& settings) { ExpectSameIdsOf(Trained(settings)); }

TEST(SentencePieceModelsTest, UnigramWithTheDefaultNormalization) {
  ExpectSameIds({{"model_type", "unigram"}, {"vocab_size", "700"}});
}

TEST(SentencePieceModelsTest, UnigramWithByteFallbackAndUserDefinedSymbols) {
  ExpectSameIds({{"model_type", "unigram"},
                 {"vocab_size", "900"},
                 {"byte_fallback", "true"},
                 {"normalization_rule_name", "nfkc"},
                 {"user_defined_symbols", "<user>,=begin,=b,\xE2\x91\xA0"}});
}

TEST(SentencePieceModelsTest, UnigramWithItsSpacesAsTheyAre) {
  ExpectSameIds({{"model_type", "unigram"},
                 {"vocab_size", "600"},
                 {"normalization_rule_name", "identity"},
                 {"remove_extra_whitespaces", "false"},
                 {"add_dummy_prefix", "false"},
                 {"split_by_whitespace", "false"}});
}

TEST(SentencePieceModelsTest, UnigramWithSpacesAsSuffixes) {
  ExpectSameIds({{"model_type", "unigram"},
                 {"vocab_size", "600"},
                 {"normalization_rule_name", "nfkc_cf"},
                 {"treat_whitespace_as_suffix", "true"}});
}

TEST(SentencePieceModelsTest, BpeWithTheDefaultNormalization) {
  ExpectSameIds({{"model_type", "bpe"}, {"vocab_size", "700"}});
}

TEST(SentencePieceModelsTest, BpeWithUserDefinedSymbols) {
  ExpectSameIds({{"model_type", "bpe"},
                 {"vocab_size", "900"},
                 {"byte_fallback", "true"},
                 {"normalization_rule_name", "nmt_nfkc_cf"},
                 {"user_defined_symbols", "<user>,=begin,th"}});
}

// What a tokenizer.json means: each character is a token, or its bytes are; then the first merge of
// the list that applies, the leftmost, as long as there is one.
class WrittenJson {
 public:
  explicit WrittenJson(const std::string& contents) : file_(nlohmann::json::parse(contents)) {
    const nlohmann::json& merges = file_["model"]["merges"];
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      ranks_[{merges[rank][0].get<std::string>(), merges[rank][1].get<std::string>()}] = rank;
    }
  }

  std::vector<int32_t> Encode(std::string_view text) const {
    std::vector<std::string> tokens = Characters(text);
    while (Merge(tokens)) {
    }
    std::vector<int32_t> ids;
    for (const std::string& token : tokens) ids.push_back(file_["model"]["vocab"].at(token));
    return ids;
  }

 private:
  std::vector<std::string> Characters(std::string_view text) const {
    std::string marked;
    const bool prefix = file_["normalizer"]["type"] == "Sequence";
    if (prefix && !text.empty()) marked += kSpaceMark;
    for (const char c : text) c == ' ' ? marked += kSpaceMark : marked += c;
    std::vector<std::string> tokens;
    for (std::string_view rest = marked; !rest.empty(); rest.remove_prefix(Utf8Length(rest))) {
      const std::string character(rest.substr(0, Utf8Length(rest)));
      if (file_["model"]["vocab"].contains(character)) {
        tokens.push_back(character);
        continue;
      }
      for (const char byte : character) {
        tokens.push_back(absl::StrFormat("<0x%02X>", static_cast<uint8_t>(byte)));
      }
    }
    return tokens;
  }

  bool Merge(std::vector<std::string>& tokens) const {
    size_t best = ranks_.size(), at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto merge = ranks_.find({tokens[i], tokens[i + 1]});
      if (merge == ranks_.end() || merge->second >= best) continue;
      best = merge->second;
      at = i;
    }
    if (best == ranks_.size()) return false;
    tokens[at] += tokens[at + 1];
    tokens.erase(tokens.begin() + static_cast<int64_t>(at) + 1);
    return true;
  }

  nlohmann::json file_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
};

TEST(SentencePieceModelsTest, WrittenAsTokenizerJsonTheyHaveTheSameIds) {
  for (const char* prefix : {"true", "false"}) {
    const std::string model = Trained({{"model_type", "bpe"},
                                       {"vocab_size", "900"},
                                       {"byte_fallback", "true"},
                                       {"normalization_rule_name", "identity"},
                                       {"remove_extra_whitespaces", "false"},
                                       {"allow_whitespace_only_pieces", "true"},
                                       {"add_dummy_prefix", prefix}});
    const auto tokenizer = SentencePieceTokenizer::Parse("model", model);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto files = HuggingFaceFiles(**tokenizer);
    ASSERT_TRUE(files.ok()) << files.status();
    const WrittenJson written(files->front().contents);
    int compared = 0;
    for (const std::string& text : Texts()) {
      const bool other = !IsValidUtf8(text) || text.find(kSpaceMark) != text.npos;
      if (other || text.size() > 2000) continue;
      EXPECT_EQ(written.Encode(text), *(*tokenizer)->Encode(text)) << text;
      ++compared;
    }
    EXPECT_GT(compared, 300);
  }
}

// The model, with every fourth piece as one that text does not become.
std::string WithUnusedPieces(const std::string& model) {
  std::string changed;
  size_t at = 0;
  for (int i = 0; model[at] == '\x0A'; ++i) {  // a piece: its length, and its fields
    const size_t length = static_cast<uint8_t>(model[at + 1]);
    std::string piece = model.substr(at + 2, length);
    if (i > 2 && i % 4 == 0) piece += "\x18\x05";
    changed += '\x0A';
    changed += static_cast<char>(piece.size());
    changed += piece;
    at += 2 + length;
  }
  return changed + model.substr(at);
}

TEST(SentencePieceModelsTest, PiecesThatAreNotUsed) {
  for (const char* type : {"unigram", "bpe"}) {
    const std::string model = Trained({{"model_type", type}, {"vocab_size", "500"}});
    ExpectSameIdsOf(WithUnusedPieces(model));
  }
}

}  // namespace
}  // namespace tessera
