#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/testing.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/normalizers.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/test_data.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A tokenizer.json with the stages of NAME.ids.json (make_testdata.py).
Json File(const std::string& name) {
  Json file = TestJson("llama2/tokenizer.json");
  file.update(TestJson(name + ".ids.json")["stages"]);
  return file;
}

std::unique_ptr<BpeTokenizer> Parsed(const Json& file) {
  return OrFail(ParseTokenizerJson("FILE", file.dump()));
}

const std::vector<std::string>& Names() {
  static const auto* names =
      new std::vector<std::string>{"llama2", "llama2_published", "llama2_split"};
  return *names;
}

std::vector<std::string> Texts() {
  auto texts = TestJson("texts.json").get<std::vector<std::string>>();
  const Json marked = TestJson("llama2.ids.json");
  texts.insert(texts.end(), marked["texts"].begin(), marked["texts"].end());
  return texts;
}

std::string Through(const Tokenizer& tokenizer, const std::string& text) {
  return *tokenizer.Decode(*tokenizer.Encode(text));
}

TEST(CharacterAlphabetTest, IdsAreThoseOfTheOriginals) {
  const std::vector<std::string> texts = Texts();
  for (const std::string& name : Names()) {
    const auto tokenizer = Parsed(File(name));
    const Json ids = TestJson(name + ".ids.json");
    ASSERT_EQ(ids["ordinary"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(Json(*tokenizer->Encode(texts[i])), ids["ordinary"][i]) << name << " " << texts[i];
      EXPECT_EQ(Json(*tokenizer->EncodeWithSpecialTokens(texts[i])), ids["special"][i])
          << name << " " << texts[i];
    }
  }
}

TEST(CharacterAlphabetTest, KeepsEveryByteButTheMarkOfASpace) {
  const auto tokenizer = Parsed(File("llama2_published"));
  for (uint64_t stream = 0; stream < 300; ++stream) {
    std::string text;
    for (uint64_t i = 0; i < stream; ++i) text += static_cast<char>(RandomNumber(stream, i));
    ASSERT_EQ(Through(*tokenizer, text), text) << stream;
  }
  EXPECT_EQ(Through(*tokenizer, "  two \xE4\xB8 "), "  two \xE4\xB8 ");
  EXPECT_EQ(Through(*tokenizer, "a\xE2\x96\x81z"), "a z");
  EXPECT_EQ(tokenizer->EncodablePrefix("two words"), 0u);
  EXPECT_TRUE(tokenizer->normalizes());
  // A space that was there is the one that begins the text.
  EXPECT_EQ(Through(*Parsed(File("llama2")), " one"), "one");
}

TEST(CharacterAlphabetTest, OneMemberOrTheOtherSaysWhetherASpaceIsAdded) {
  Json file = File("llama2");
  const auto first_id = [](const Json& changed) {
    return (*Parsed(changed)->Encode("one")).front();
  };
  const int32_t marked = first_id(file);
  Json& stage = file["pre_tokenizer"];
  stage["prepend_scheme"] = "never";
  EXPECT_NE(first_id(file), marked);
  stage.erase("prepend_scheme");
  EXPECT_EQ(first_id(file), marked);
  stage["add_prefix_space"] = false;
  EXPECT_NE(first_id(file), marked);
  stage["add_prefix_space"] = true;
  EXPECT_EQ(first_id(file), marked);
}

// A merge across a space applies unless pieces begin there.
TEST(CharacterAlphabetTest, ASpaceBeginsAPieceUnlessTheFileSaysOtherwise) {
  Json file = File("llama2");
  const int32_t across = static_cast<int32_t>(file["model"]["vocab"].size());
  file["model"]["vocab"]["e" + std::string(kSpaceMark)] = across;
  file["model"]["merges"].insert(file["model"]["merges"].begin(),
                                 Json{"e", std::string(kSpaceMark)});
  const auto joins = [&](const Json& changed) {
    const std::vector<int32_t> ids = *Parsed(changed)->Encode("one two");
    return std::ranges::find(ids, across) != ids.end();
  };
  EXPECT_TRUE(joins(file));
  file["pre_tokenizer"]["split"] = true;
  EXPECT_FALSE(joins(file));
  file["pre_tokenizer"].erase("split");
  EXPECT_FALSE(joins(file));
  file["pre_tokenizer"] = nullptr;
  file["normalizer"] = Json{
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", std::string(kSpaceMark)}};
  EXPECT_TRUE(joins(file));
}

TEST(CharacterAlphabetTest, WithoutAnyStageTextIsNotCut) {
  Json file = File("llama2");
  file["pre_tokenizer"] = nullptr;
  const auto tokenizer = Parsed(file);
  EXPECT_TRUE(tokenizer->normalizes());
  EXPECT_EQ(tokenizer->EncodablePrefix("two words"), 0u);
}

TEST(TextNormalizerTest, StepsAreDoneInOrder) {
  TextNormalizer normalizer;
  EXPECT_FALSE(normalizer.active());
  normalizer.AddPrefix();
  normalizer.AddForm(NormalizationForm::kNfkc);
  normalizer.AddSpaceMarks();
  EXPECT_TRUE(normalizer.active());
  EXPECT_EQ(normalizer.Normalize(""), "");
  const std::string mark(kSpaceMark);
  EXPECT_EQ(normalizer.Normalize(" a\xC2\xA0"), mark + mark + "a" + mark);
}

TEST(CharacterAlphabetTest, TheDecoderSaysWhetherASpaceIsDropped) {
  Json file = File("llama2_published");
  const auto decoded = [](const Json& changed) { return Through(*Parsed(changed), "one two"); };
  EXPECT_EQ(decoded(file), "one two");
  file["decoder"]["decoders"].erase(3);
  EXPECT_EQ(decoded(file), " one two");
  Json metaspace = {
      {"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", "always"}};
  file["decoder"] = metaspace;
  EXPECT_EQ(decoded(file), "one two");
  file["decoder"]["prepend_scheme"] = "never";
  EXPECT_EQ(decoded(file), " one two");
}

TEST(CharacterAlphabetTest, BeginAndEndOfText) {
  Json file = File("llama2");
  EXPECT_EQ(Parsed(file)->end_of_text(), 2);  // </s>
  EXPECT_FALSE(Parsed(file)->begin_of_text().has_value());
  file["post_processor"]["single"] = Json::parse(
      R"([{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}])");
  EXPECT_EQ(Parsed(file)->begin_of_text(), 1);
  EXPECT_EQ(Parsed(file)->Files().at(0).contents, file.dump());
}

// A vocabulary of some characters, all bytes and random merges.
struct DrawnVocabulary {
  TokenIds ids;
  std::vector<BpeMerge> merges;
};

const std::vector<std::string> kCharacters = {"a",  "b",        " ",
                                              "\n", "\xC3\xA9", std::string(kSpaceMark)};

DrawnVocabulary RandomVocabulary(uint64_t stream) {
  DrawnVocabulary vocabulary;
  std::vector<std::string> tokens = kCharacters;
  for (uint64_t i = 0; i < 12; ++i) {
    const std::string& left = tokens[RandomNumber(stream, 2 * i) % tokens.size()];
    const std::string& right = tokens[RandomNumber(stream, 2 * i + 1) % tokens.size()];
    const std::string both = absl::StrCat(left, right);
    if (std::ranges::find(tokens, both) == tokens.end()) tokens.push_back(both);
  }
  const auto add = [&](const std::string& token) {
    vocabulary.ids.emplace(token, static_cast<int32_t>(vocabulary.ids.size()));
  };
  for (int byte = 0; byte < 256; ++byte) add(absl::StrFormat("<0x%02X>", byte));
  for (const std::string& token : tokens) add(token);
  for (size_t i = kCharacters.size(); i < tokens.size(); ++i) {
    for (size_t cut = 1; cut < tokens[i].size(); ++cut) {
      const std::string left = tokens[i].substr(0, cut), right = tokens[i].substr(cut);
      if (!vocabulary.ids.contains(left) || !vocabulary.ids.contains(right)) continue;
      EXPECT_OK(AddMerge("FILE", vocabulary.ids, left, right, vocabulary.merges));
    }
  }
  return vocabulary;
}

std::vector<int32_t> EncodeWhole(const CharacterAlphabet& alphabet, const BpeMerges& merges,
                                 std::string_view text) {
  std::vector<int32_t> ids;
  alphabet.AppendTokens(text, ids);
  merges.Apply(ids, 0);
  return ids;
}

// Where merges cannot join, cutting changes nothing.
TEST(CharacterAlphabetTest, PiecesHaveTheIdsOfTheWhole) {
  int cuts = 0, joined = 0;
  for (uint64_t stream = 0; stream < 300; ++stream) {
    const DrawnVocabulary vocabulary = RandomVocabulary(stream);
    const BpeMerges merges(vocabulary.merges);
    std::vector<std::string> characters = kCharacters;
    characters.insert(characters.end(), {"\xE4\xB8\xAD", "\xFF", "\xE2", "z"});
    std::string text;
    for (uint64_t i = 0; i < 60; ++i) {
      text += characters[RandomNumber(stream + 1000, i) % characters.size()];
    }
    for (const bool before_space : {false, true}) {
      const auto alphabet =
          *CharacterAlphabet::Create("FILE", vocabulary.ids, vocabulary.merges, before_space);
      std::vector<int32_t> pieces, wholes;
      for (std::string_view rest = text; !rest.empty(); ++cuts) {
        const size_t length = alphabet->PieceLength(rest);
        const std::vector<int32_t> ids = EncodeWhole(*alphabet, merges, rest.substr(0, length));
        pieces.insert(pieces.end(), ids.begin(), ids.end());
        joined += ids.size() < 2 && length > 2;
        rest.remove_prefix(length);
      }
      for (std::string_view rest = text; !rest.empty();) {
        size_t end = rest.find(kSpaceMark, 1);
        if (!before_space || end == rest.npos) end = rest.size();
        const std::vector<int32_t> ids = EncodeWhole(*alphabet, merges, rest.substr(0, end));
        wholes.insert(wholes.end(), ids.begin(), ids.end());
        rest.remove_prefix(end);
      }
      ASSERT_EQ(pieces, wholes) << stream;
    }
  }
  EXPECT_GT(cuts, 1000);
  EXPECT_GT(joined, 1000);
}

// With quadratic time, each of these would take longer than the test may.
TEST(CharacterAlphabetTest, LongTextsTakeLinearTime) {
  constexpr size_t kBytes = 1 << 18;
  for (const std::string& name : Names()) {
    const auto tokenizer = Parsed(File(name));
    for (const char* part : {"a", "  ", "\n", "the", "\xC3\xA9", "\xFF", "<s>"}) {
      std::string text = "x";
      while (text.size() < kBytes) text += part;
      ASSERT_EQ(Through(*tokenizer, text), text) << name << " " << part;
    }
  }
}

TEST(CharacterAlphabetTest, WhatIsNotSupportedIsNamed) {
  const auto expect = [](const std::string& name, const char* pointer, const Json& value,
                         const std::string& part) {
    Json changed = File(name);
    changed[Json::json_pointer(pointer)] = value;
    const absl::Status status = ParseTokenizerJson("FILE", changed.dump()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pointer << " " << status;
    EXPECT_EQ(status.message(), "FILE: " + part + ", which is not supported");
  };
  const std::string now = "llama2", before = "llama2_published";
  expect(now, "/model/byte_fallback", false, "model.byte_fallback is false");
  expect(now, "/model/ignore_merges", true, "model.ignore_merges is true");
  expect(now, "/pre_tokenizer/replacement", "_", "pre_tokenizer.replacement is \"_\"");
  expect(now, "/pre_tokenizer/prepend_scheme", "last", "pre_tokenizer.prepend_scheme is \"last\"");
  expect(now, "/pre_tokenizer/future", 1, "pre_tokenizer.future is 1");
  expect(now, "/pre_tokenizer/type", "Whitespace", "pre_tokenizer is \"Whitespace\"");
  expect(now, "/pre_tokenizer", Json::parse(R"({"type":"Sequence","pretokenizers":[
             {"type":"Metaspace","replacement":"\u2581"},{"type":"Digits"}]})"),
         "pre_tokenizer.pretokenizers[1] is \"Digits\"");
  expect(now, "/decoder/decoders/3/stop", 1, "decoder.decoders[3] is \"Strip\"");
  expect(now, "/decoder", nullptr, "decoder is null");
  expect(now, "/decoder/decoders/0/content", "_", "decoder.decoders[0] is \"Replace\"");
  expect(now, "/decoder/decoders/3/start", 2, "decoder.decoders[3] is \"Strip\"");
  expect(now, "/decoder/decoders", Json::array({{{"type", "Fuse"}}}), "decoder is \"Sequence\"");
  expect(before, "/normalizer/normalizers/1/pattern", {{"Regex", " "}},
         "normalizer.normalizers[1].pattern is an object");
  expect(before, "/normalizer/normalizers/1/pattern/String", "a",
         "normalizer.normalizers[1].pattern.String is \"a\"");
  expect(before, "/normalizer/normalizers/1/content", "aa",
         "normalizer.normalizers[1].content is \"aa\"");
  expect(before, "/normalizer/normalizers/1/content", 1, "normalizer.normalizers[1].content is 1");
  expect(before, "/normalizer/normalizers/0/prepend", "aa",
         "normalizer.normalizers[0].prepend is \"aa\"");
  expect(before, "/normalizer/normalizers/0/future", 1, "normalizer.normalizers[0].future is 1");
}

TEST(CharacterAlphabetTest, AVocabularyThatLosesTextIsRefused) {
  Json file = File("llama2");
  file["model"]["vocab"]["<0x7f>"] = file["model"]["vocab"]["<0x7F>"];
  file["model"]["vocab"].erase("<0x7F>");
  absl::Status status = ParseTokenizerJson("FILE", file.dump()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(),
            "FILE: the vocabulary has no token for byte 127, so that text would "
            "be lost");
  file = File("llama2");
  file["model"]["vocab"]["<0x41>e"] = file["model"]["vocab"].size();
  file["model"]["merges"].push_back({"<0x41>", "e"});
  status = ParseTokenizerJson("FILE", file.dump()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("has the token of a byte"), std::string::npos) << status;
}

// Their time would be a multiple of the file's size for every text.
TEST(CharacterAlphabetTest, NormalizersAreFew) {
  Json file = File("llama2_published");
  file["normalizer"]["normalizers"] = Json(9, Json{{"type", "NFC"}});
  const absl::Status status = ParseTokenizerJson("FILE", file.dump()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(status.message(),
            "FILE: normalizer.normalizers expected to be at most 8 steps, found a list");
  file["normalizer"]["normalizers"].erase(8);
  EXPECT_OK(ParseTokenizerJson("FILE", file.dump()));
}

}  // namespace
}  // namespace tessera
