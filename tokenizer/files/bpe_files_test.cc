#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/testing.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/test_data.h"
#include "tokenizer/files/tiktoken.h"
#include "tokenizer/llmc_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

TiktokenEncoding SmallEncoding(std::string_view regex) {
  constexpr int32_t kEndOfText = 1203;  // as in make_testdata.py
  TiktokenEncoding encoding{.name = "small", .split = *FindSplitRules(regex)};
  encoding.end_of_text = kEndOfText;
  encoding.special = {{"<|endoftext|>", kEndOfText}};
  return encoding;
}

std::unique_ptr<BpeTokenizer> Small(std::string_view regex) {
  return *ParseTiktoken("small", TestFile("small.tiktoken"), SmallEncoding(regex));
}

// GPT-2's, with numbers split off before.
std::unique_ptr<BpeTokenizer> WithDigits(bool individual) {
  Json file = TestJson("gpt2_json/tokenizer.json");
  const Json digits = {{"type", "Digits"}, {"individual_digits", individual}};
  const Json steps = Json::array({digits, file["pre_tokenizer"]});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  return OrFail(ParseTokenizerJson("digits", file.dump()));
}

// Every fixture by the name of its ids.
std::map<std::string, std::unique_ptr<BpeTokenizer>> Fixtures() {
  std::map<std::string, std::unique_ptr<BpeTokenizer>> all;
  const auto json = [](const std::string& folder) {
    return OrFail(ParseTokenizerJson(folder, TestFile(folder + "/tokenizer.json")));
  };
  all["llama3"] = json("llama3");
  all["added"] = json("added");
  all["gpt2"] = json("gpt2_json");
  all["gpt2_digits"] = WithDigits(true);
  all["gpt2_numbers"] = WithDigits(false);
  all["r50k"] = Small(kGpt2Regex);
  all["cl100k"] = Small(kCl100kRegex);
  all["tiktoken_llama3"] = Small(kLlama3Regex);
  return all;
}

void ExpectIds(const Tokenizer& tokenizer, const std::string& name) {
  const Json texts = TestJson("texts.json");
  const Json ids = TestJson(name + ".ids.json");
  ASSERT_GT(texts.size(), 70u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i].get<std::string>();
    EXPECT_EQ(*tokenizer.Encode(text), ids["ordinary"][i].get<std::vector<int32_t>>())
        << name << " " << texts[i];
    EXPECT_EQ(*tokenizer.EncodeWithSpecialTokens(text),
              ids["special"][i].get<std::vector<int32_t>>())
        << name << " " << texts[i];
  }
}

TEST(BpeTokenizerTest, IdsAreThoseOfTheOriginals) {
  for (const auto& [name, tokenizer] : Fixtures()) ExpectIds(*tokenizer, name);
  ASSERT_OK_AND_ASSIGN(const auto gpt2, ParseGpt2Files("gpt2", TestFile("gpt2/vocab.json"),
                                                       TestFile("gpt2/merges.txt")));
  ExpectIds(*gpt2, "gpt2");
}

TEST(BpeTokenizerTest, WrittenAsTokenizerJsonTheyHaveTheSameIds) {
  const auto expect = [](const std::string& json, const std::string& ids) {
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, ParseTokenizerJson(ids, json));
    ExpectIds(*tokenizer, ids);
  };
  for (const auto& [regex, ids] : {std::pair(kGpt2Regex, "r50k"),
                                   {kCl100kRegex, "cl100k"},
                                   {kLlama3Regex, "tiktoken_llama3"}}) {
    const auto vocabulary = ReadTiktoken("small", TestFile("small.tiktoken"), SmallEncoding(regex));
    expect(WriteTokenizerJson(*vocabulary), ids);
  }
  const auto gpt2 =
      ParseGpt2Files("gpt2", TestFile("gpt2/vocab.json"), TestFile("gpt2/merges.txt"));
  ASSERT_OK_AND_ASSIGN(const auto files, HuggingFaceFiles(**gpt2));
  expect(files.front().contents, "gpt2");
}

TEST(BpeTokenizerTest, FilesForHuggingFace) {
  const Json text = {{"eos_token", "<|endoftext|>"}, {"other", 1}};
  const auto config = ParseTokenizerConfig("config", text.dump());
  ASSERT_OK_AND_ASSIGN(const auto gpt2, ParseGpt2Files("gpt2", TestFile("gpt2/vocab.json"),
                                                       TestFile("gpt2/merges.txt"), *config));
  auto files = *HuggingFaceFiles(*gpt2);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[1].name, "tokenizer_config.json");
  EXPECT_EQ(files[1].contents, text.dump());
  EXPECT_EQ(files[2].name, "generation_config.json");
  EXPECT_EQ(Json::parse(files[2].contents)["eos_token_id"], gpt2->end_of_text());

  // A file of Hugging Face stays as it is; its template says where a text begins.
  const std::string contents = TestFile("llama3/tokenizer.json");
  const auto llama3 = ParseTokenizerJson("llama3", contents);
  ASSERT_TRUE((*llama3)->begin_of_text().has_value());
  files = *HuggingFaceFiles(**llama3);
  EXPECT_EQ(files[0].contents, contents);
  EXPECT_EQ(Json::parse(files[1].contents)["bos_token"],
            (*llama3)->TokenText(*(*llama3)->begin_of_text()));
  EXPECT_EQ(Json::parse(files[2].contents)["bos_token_id"], *(*llama3)->begin_of_text());

  const auto decoder = LlmcTokenizer::Parse("llmc", *LlmcTokenizerFile(*gpt2));
  const auto refused = HuggingFaceFiles(**decoder);
  EXPECT_TRUE(absl::IsUnimplemented(refused.status())) << refused.status();
}

TEST(BpeTokenizerTest, AMergeOfAnEmptyTokenIsRefused) {
  Json vocabulary = TestJson("gpt2/vocab.json");
  vocabulary[""] = vocabulary.size();
  const auto tokenizer =
      ParseGpt2Files("gpt2", vocabulary.dump(), TestFile("gpt2/merges.txt") + "\n a\n");
  EXPECT_TRUE(absl::IsDataLoss(tokenizer.status())) << tokenizer.status();
  EXPECT_NE(tokenizer.status().message().find("expected two tokens, found an empty one"),
            std::string::npos)
      << tokenizer.status();
}

TEST(BpeTokenizerTest, ATokenThatNoMergesMakeIsStillWrittenWhole) {
  const std::string file = TestFile("small.tiktoken") + absl::Base64Escape("qzxj") + " 1200\n";
  ASSERT_OK_AND_ASSIGN(const auto vocabulary,
                       ReadTiktoken("small", file, SmallEncoding(kLlama3Regex)));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       ParseTokenizerJson("written", WriteTokenizerJson(vocabulary)));
  EXPECT_EQ(*tokenizer->Encode("qzxj"), std::vector<int32_t>{1200});
  EXPECT_GT(tokenizer->Encode("aqzxj")->size(), 2u);
}

// What text begins with is in the vocabulary of a well-known tiktoken file only.
TEST(BpeTokenizerTest, TheTemplateOfATokenizerJsonThatWasWritten) {
  auto vocabulary = *ReadTiktoken("small", TestFile("small.tiktoken"), SmallEncoding(kLlama3Regex));
  vocabulary.begin_of_text = vocabulary.end_of_text;
  ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                       ParseTokenizerJson("written", WriteTokenizerJson(vocabulary)));
  EXPECT_EQ(tokenizer->begin_of_text(), vocabulary.end_of_text);
}

// Added tokens are found before and after normalisation, as they ask for.
TEST(BpeTokenizerTest, NormalizesAsTheOriginals) {
  const auto expect = [](const std::string& name, const Json& normalizer) {
    Json file = TestJson(name + "/tokenizer.json");
    file["normalizer"] = normalizer;
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, ParseTokenizerJson(name, file.dump()));
    ExpectIds(*tokenizer, name + "_normalized");
    EXPECT_EQ(tokenizer->EncodablePrefix("\xE2\x91\xB4 \n"), 0u);
    const auto normal = [&](const char* text) {
      return *tokenizer->Decode(*tokenizer->Encode(text));
    };
    EXPECT_EQ(normal("e\xCC\x81\xFF"), "\xC3\xA9\xFF");
    // Marks are put in order, unless they are newer than the originals' tables.
    EXPECT_EQ(normal("x\xCC\x81\xCC\xA3"), "x\xCC\xA3\xCC\x81");
    EXPECT_EQ(normal("x\xE1\xB7\xB6\xCC\xA3"), "x\xE1\xB7\xB6\xCC\xA3");
  };
  expect("llama3", {{"type", "NFC"}});
  expect("added",
         Json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"NFKC"}]})"));
}

TEST(BpeTokenizerTest, ClassesAreThoseOfTheOriginals) {
  const Json classes = TestJson("classes.json");
  std::vector<CharacterClass> expected(0x110000, CharacterClass::kOther);
  for (const auto& [name, kind] :
       {std::pair("\\p{L}", CharacterClass::kLetter), std::pair("\\p{N}", CharacterClass::kNumber),
        std::pair("\\s", CharacterClass::kSpace)}) {
    ASSERT_GT(classes[name].size(), 1u);
    for (const Json& range : classes[name]) {
      for (uint32_t c = range[0]; c <= range[1].get<uint32_t>(); ++c) expected[c] = kind;
    }
  }
  for (uint32_t c = 0; c < 0x110000; ++c) ASSERT_EQ(ClassOf(c), expected[c]) << c;
}

TEST(BpeTokenizerTest, SpecialTokens) {
  const auto fixtures = Fixtures();
  const Tokenizer& llama3 = *fixtures.at("llama3");
  EXPECT_EQ(llama3.TokenText(*llama3.begin_of_text()), "<|begin_of_text|>");
  EXPECT_EQ(llama3.TokenText(llama3.end_of_text()), "<|end_of_text|>");
  EXPECT_EQ(llama3.special_tokens().size(), 3u);
  const Tokenizer& gpt2 = *fixtures.at("gpt2");
  EXPECT_FALSE(gpt2.begin_of_text().has_value());
  EXPECT_EQ(gpt2.TokenText(gpt2.end_of_text()), "<|endoftext|>");
  EXPECT_EQ(gpt2.end_of_text(), gpt2.vocab_size() - 1);
}

// The property of byte-level BPE, whatever the bytes.
TEST(BpeTokenizerTest, LosslessForAnyBytes) {
  const Json texts = TestJson("texts.json");
  for (const auto& [name, tokenizer] : Fixtures()) {
    for (uint64_t stream = 0; stream < 200; ++stream) {
      std::string text;
      for (uint64_t i = 0; i < stream; ++i) text += static_cast<char>(RandomNumber(stream, i));
      // Some of it valid, with a cut in the middle of a character.
      const std::string valid = texts[stream % texts.size()].get<std::string>();
      text += valid.substr(0, valid.size() / 2);
      ASSERT_OK_AND_ASSIGN(const auto decoded, tokenizer->Decode(*tokenizer->Encode(text)));
      ASSERT_EQ(decoded, text) << name << " " << stream;
    }
  }
}

// With quadratic time, each of these would take longer than the test may.
TEST(BpeTokenizerTest, LongPiecesTakeLinearTime) {
  constexpr size_t kBytes = 1 << 18;
  std::vector<std::string> texts = {std::string(kBytes, 'a'),    std::string(kBytes, ' '),
                                    std::string(kBytes, '\n'),   std::string(kBytes, '1'),
                                    std::string(kBytes, '\xFF'), std::string(kBytes, '<')};
  std::string mixed, accents;
  while (mixed.size() < kBytes) mixed += "etaoinetr";
  while (accents.size() < kBytes) accents += "\xC3\xA9";
  texts.push_back(mixed);
  texts.push_back(accents);
  for (const auto& [name, tokenizer] : Fixtures()) {
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = *tokenizer->EncodeWithSpecialTokens(text);
      ASSERT_EQ(*tokenizer->Decode(ids), text) << name;
      EXPECT_LE(tokenizer->EncodablePrefix(text), text.size());
    }
  }
}

TEST(BpeTokenizerTest, APrefixEncodesOnItsOwn) {
  std::vector<std::string> texts = TestJson("texts.json");
  texts.push_back("no UTF-8: caf\xC3\xA9\xA9\n\nand \xE2\x82\n");
  int cuts = 0;
  for (const auto& [name, tokenizer] : Fixtures()) {
    for (const std::string& text : texts) {
      for (size_t size = 1; size <= text.size(); ++size) {
        const size_t prefix = tokenizer->EncodablePrefix(std::string_view(text).substr(0, size));
        ASSERT_LT(prefix, size);
        if (prefix == 0) continue;
        std::vector<int32_t> ids = *tokenizer->Encode(text.substr(0, prefix));
        const std::vector<int32_t> rest = *tokenizer->Encode(text.substr(prefix));
        ids.insert(ids.end(), rest.begin(), rest.end());
        ASSERT_EQ(ids, *tokenizer->Encode(text)) << name << " " << prefix << " of " << text;
        ++cuts;
      }
    }
  }
  EXPECT_GT(cuts, 1000);
  Json json = TestJson("llama3/tokenizer.json");
  json["added_tokens"][0]["content"] = "two words";
  json.erase("post_processor");
  EXPECT_EQ((*ParseTokenizerJson("FILE", json.dump()))->EncodablePrefix("of two words"), 0u);
}

// Repeats the definition: merges the leftmost pair of lowest rank until no pair can be merged.
std::vector<int32_t> NaiveMerges(const std::vector<BpeMerge>& merges, const std::string& piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    const BpeMerge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const BpeMerge& merge : merges) {
        const bool applies = merge.left == ids[i] && merge.right == ids[i + 1];
        if (applies && (best == nullptr || merge.rank < best->rank)) best = &merge, at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[at] = best->merged;
    ids.erase(ids.begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(BpeMergesTest, ShortAndLongPiecesFollowTheDefinition) {
  for (uint64_t stream = 0; stream < 60; ++stream) {
    std::vector<BpeMerge> merges;
    int32_t next = 256;
    for (uint64_t i = 0; i < 40; ++i) {
      const auto token = [&](uint64_t j) -> int32_t {
        const uint32_t word = RandomNumber(stream, 3 * i + j);
        const int32_t created = next - 256;
        return word % 2 == 0 || created == 0 ? 'a' + word / 2 % 3 : 256 + word / 2 % created;
      };
      const BpeMerge merge{token(0), token(1), static_cast<int32_t>(i), next};
      const bool known = std::ranges::any_of(merges, [&](const BpeMerge& m) {
        return m.left == merge.left && m.right == merge.right;
      });
      if (known) continue;
      merges.push_back(merge);
      ++next;
    }
    const BpeMerges bpe(merges);
    for (const size_t size : {1, 2, 7, 30, 48, 49, 130}) {
      std::string piece;
      for (size_t i = 0; i < size; ++i) {
        piece += static_cast<char>('a' + RandomNumber(stream + 1000, i) % 3);
      }
      std::vector<int32_t> ids = {'c'};  // of an earlier piece
      ids.insert(ids.end(), piece.begin(), piece.end());
      bpe.Apply(ids, 1);
      ASSERT_EQ(ids.front(), 'c');
      ids.erase(ids.begin());
      ASSERT_EQ(ids, NaiveMerges(merges, piece)) << stream << " " << piece;
    }
  }
}

// What a file asks for beyond what is implemented is refused by name.
TEST(TokenizerJsonTest, UnknownSettingsAreNamed) {
  const Json whole = TestJson("llama3/tokenizer.json");
  const auto expect = [&](const char* pointer, const Json& value, const std::string& part) {
    Json changed = whole;
    changed[Json::json_pointer(pointer)] = value;
    const absl::Status status = ParseTokenizerJson("FILE", changed.dump()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pointer << " " << status;
    EXPECT_EQ(status.message(), "FILE: " + part + ", which is not supported");
  };
  ASSERT_OK(ParseTokenizerJson("FILE", whole.dump()));
  expect("/version", "2.0", "version is \"2.0\"");
  expect("/future", true, "future is true");
  expect("/truncation", {{"max_length", 512}}, "truncation is an object");
  expect("/padding", {{"strategy", "BatchLongest"}}, "padding is an object");
  expect("/normalizer", {{"type", "Lowercase"}}, "normalizer is \"Lowercase\"");
  expect("/normalizer",
         Json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Strip"}]})"),
         "normalizer.normalizers[1] is \"Strip\"");
  expect("/model/type", "Unigram", "model.type is \"Unigram\"");
  expect("/model/dropout", 0.1, "model.dropout is 0.1");
  expect("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is \"</w>\"");
  expect("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix is \"##\"");
  expect("/model/future", 1, "model.future is 1");
  expect("/pre_tokenizer", nullptr, "pre_tokenizer is null");
  expect("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer is \"Metaspace\"");
  expect("/pre_tokenizer/pretokenizers/0/type", "Punctuation",
         "pre_tokenizer.pretokenizers[0] is \"Punctuation\"");
  expect("/pre_tokenizer/pretokenizers/0", {{"type", "Digits"}}, "pre_tokenizer is \"Sequence\"");
  expect("/pre_tokenizer/pretokenizers",
         Json::array({{{"type", "Digits"}, {"future", 1}}, {{"type", "ByteLevel"}}}),
         "pre_tokenizer.pretokenizers[0].future is 1");
  expect("/pre_tokenizer/pretokenizers",
         Json::array({{{"type", "Digits"}},
                      whole["pre_tokenizer"]["pretokenizers"][0],
                      whole["pre_tokenizer"]["pretokenizers"][1]}),
         "pre_tokenizer.pretokenizers[1] is \"Split\"");
  expect("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "\\w+"}},
         "pre_tokenizer.pretokenizers[0].pattern.Regex is \"\\\\w+\"");
  expect("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}},
         "pre_tokenizer.pretokenizers[0].pattern is an object");
  expect("/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext",
         "pre_tokenizer.pretokenizers[0].behavior is \"MergedWithNext\"");
  expect("/pre_tokenizer/pretokenizers/1/add_prefix_space", true,
         "pre_tokenizer.pretokenizers[1].add_prefix_space is true");
  expect("/pre_tokenizer/pretokenizers/1/use_regex", true,
         "pre_tokenizer.pretokenizers[1].use_regex is true");
  expect("/decoder", {{"type", "WordPiece"}}, "decoder is \"WordPiece\"");
  expect("/post_processor", {{"type", "BertProcessing"}}, "post_processor is \"BertProcessing\"");
  for (const std::string name : {"lstrip", "rstrip", "single_word"}) {
    expect(("/added_tokens/0/" + name).c_str(), true, "added_tokens[0]." + name + " is true");
  }
}

TEST(TokenizerJsonTest, ContradictionsAreNamed) {
  const Json whole = TestJson("llama3/tokenizer.json");
  const auto expect = [&](const std::function<void(Json&)>& change, const std::string& part) {
    Json changed = whole;
    change(changed);
    const absl::Status status = ParseTokenizerJson("FILE", changed.dump()).status();
    EXPECT_FALSE(status.ok()) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  };
  expect([](Json& j) { j["model"]["vocab"].erase("a"); }, "no token");
  expect([](Json& j) { j["model"]["vocab"]["a"] = 5; }, "an id of its own");
  expect([](Json& j) { j["model"]["vocab"]["a"] = 1 << 30; }, "an id of its own");
  expect([](Json& j) { j["model"]["vocab"]["a"] = -1; }, "an id of its own");
  expect([](Json& j) { j["model"]["vocab"] = Json::object(); }, "a vocabulary");
  expect([](Json& j) { j["model"]["merges"] = "none"; }, "a list of merges");
  expect([](Json& j) { j["model"]["merges"][3] = "one"; }, "two tokens");
  expect([](Json& j) { j["model"]["merges"][3] = {"a", "never"}; }, "never");
  expect([](Json& j) { j["added_tokens"][0]["id"] = 5; }, "added_tokens[0].id expected to be 1200");
  expect(
      [](Json& j) {
        j["added_tokens"] = Json::array();
        j["post_processor"] = nullptr;
      },
      "no end-of-text token");
  expect(
      [](Json& j) {
        Json& vocabulary = j["model"]["vocab"];
        vocabulary["never"] = vocabulary["!"];
        vocabulary.erase("!");
        j["model"]["merges"] = Json::array();
      },
      "no token for byte 33");
  EXPECT_TRUE(absl::IsDataLoss(ParseTokenizerJson("FILE", "[1]").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseTokenizerJson("FILE", whole.dump().substr(9)).status()));
  EXPECT_FALSE(ParseTokenizerJson("FILE", "{\"model\":" + std::string(1 << 20, '[')).ok());
}

TEST(TokenizerJsonTest, TheConfigurationNamesEndOfText) {
  Json json = TestJson("llama3/tokenizer.json");
  json["added_tokens"][1]["content"] = "<|eot|>";
  EXPECT_FALSE(ParseTokenizerJson("FILE", json.dump()).ok());
  ASSERT_OK_AND_ASSIGN(const auto config,
                       ParseTokenizerConfig("CONFIG", R"({"eos_token": {"content": "<|eot|>"}})"));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, ParseTokenizerJson("FILE", json.dump(), config));
  EXPECT_EQ(tokenizer->TokenText(tokenizer->end_of_text()), "<|eot|>");
  EXPECT_EQ(tokenizer->Files().size(), 2u);
}

TEST(Gpt2FilesTest, OtherTokenizersWithFilesOfTheseNamesAreRefused) {
  const std::string merges = TestFile("gpt2/merges.txt");
  const std::string text = TestFile("gpt2/vocab.json");
  const auto qwen = ParseTokenizerConfig("CONFIG", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  const absl::Status named = ParseGpt2Files("FILE", text, merges, *qwen).status();
  EXPECT_TRUE(absl::IsInvalidArgument(named));
  EXPECT_NE(named.message().find("Qwen2Tokenizer"), std::string::npos) << named;
  Json clip = Json::parse(text);
  clip["a</w>"] = clip.size();
  EXPECT_TRUE(absl::IsInvalidArgument(ParseGpt2Files("FILE", clip.dump(), merges).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseGpt2Files("FILE", text, merges + "a b c\n").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseGpt2Files("FILE", text, merges + "ab\n").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseGpt2Files("FILE", "{}", merges).status()));
}

// A token that is not written in the alphabet of bytes decodes to itself, and text is not encoded
// with it: here a space, which is written as U+0120.
TEST(Gpt2FilesTest, TokensOutsideTheAlphabetAreNotBytes) {
  const std::string merges = TestFile("gpt2/merges.txt");
  Json vocabulary = TestJson("gpt2/vocab.json");
  const auto before = ParseGpt2Files("FILE", vocabulary.dump(), merges);
  const int32_t id = static_cast<int32_t>(vocabulary.size());
  vocabulary[" "] = id;
  ASSERT_OK_AND_ASSIGN(const auto after, ParseGpt2Files("FILE", vocabulary.dump(), merges));
  EXPECT_EQ(after->TokenText(id), " ");
  const std::string text = "1  2 \n 3 ";
  EXPECT_EQ(*after->Encode(text), *(*before)->Encode(text));
}

}  // namespace
}  // namespace tessera
