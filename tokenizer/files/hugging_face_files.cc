#include "tokenizer/files/hugging_face_files.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/bpe/added_tokens.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/tiktoken.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
// Tokens as they are written in the file, by id.
using TokenTexts = std::map<int32_t, std::string>;

Json Added(const std::vector<AddedToken>& tokens) {
  Json list = Json::array();
  std::vector<AddedToken> sorted = tokens;
  std::ranges::sort(sorted, {}, &AddedToken::id);
  for (const AddedToken& token : sorted) {
    list.push_back({{"id", token.id},
                    {"content", token.text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

Json Model(const TokenTexts& tokens, Json merges) {
  Json::object_t vocabulary;
  // emplace() would search all of it for each token.
  for (const auto& [id, text] : tokens) vocabulary.emplace_back(text, id);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

// Puts one token before every text, and another text's before that, where programs ask for special
// tokens.
Json Template(const std::string& token, int32_t id) {
  const Json special = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", Json::array({special, sequence("A", 0)})},
      {"pair", Json::array({special, sequence("A", 0), special, sequence("B", 1)})},
      {"special_tokens",
       {{token, {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}}}}}};
}

Json File(Json added) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", std::move(added)},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", nullptr}};
}

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json PreTokenizer(const SplitRules& rules) {
  const std::string_view regex = SplitRegex(rules);
  if (regex == kGpt2Regex) return ByteLevel(/*use_regex=*/true);
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({{{"type", "Split"},
                                          {"pattern", {{"Regex", regex}}},
                                          {"behavior", "Isolated"},
                                          {"invert", false}},
                                         ByteLevel(/*use_regex=*/false)})}};
}

std::string ByteLevelText(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += ByteLevelCharacter(static_cast<uint8_t>(byte));
  return text;
}

TokenTexts ByteLevelTexts(const BpeVocabulary& vocabulary) {
  TokenTexts texts;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& bytes = vocabulary.tokens[id];
    if (!bytes.empty()) texts[static_cast<int32_t>(id)] = ByteLevelText(bytes);
  }
  for (const SpecialToken& token : vocabulary.unreachable) texts[token.id] = token.text;
  // Without them, their programs would number them from the last id on.
  for (const AddedToken& token : vocabulary.added) texts[token.id] = token.text;
  return texts;
}

const AddedToken* FindAdded(const BpeVocabulary& vocabulary, std::optional<int32_t> id) {
  const auto found = std::ranges::find_if(vocabulary.added,
                                          [&](const AddedToken& token) { return token.id == id; });
  return found == vocabulary.added.end() ? nullptr : &*found;
}

std::string Dump(const Json& json) { return json.dump(1) + "\n"; }

using Scores = absl::flat_hash_map<std::string, float>;

// Returns the merges that make the pieces, those of higher score first.
absl::StatusOr<Json> PieceMerges(const Scores& scores) {
  const auto score = [&scores](std::string_view text) -> std::optional<float> {
    const auto found = scores.find(View(text));
    return found == scores.end() ? std::nullopt : std::optional(found->second);
  };
  std::map<float, std::pair<std::string_view, std::string_view>, std::greater<>> merges;
  std::vector<std::string_view> characters;
  for (const auto& [text, own_score] : scores) {
    characters.clear();
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(Utf8Length(rest))) {
      characters.push_back(rest.substr(0, Utf8Length(rest)));
    }
    const auto parts = LastMerge(characters, score);
    if (!parts.has_value()) continue;
    if (!score(parts->first).has_value() || !score(parts->second).has_value()) {
      return absl::UnimplementedError(absl::StrCat("tokenizer.json cannot have piece \"", text,
                                                   "\", whose parts are not pieces"));
    }
    if (!merges.emplace(own_score, *parts).second) {
      return absl::UnimplementedError(absl::StrCat(
          "tokenizer.json cannot have several merged pieces of one score, ", own_score));
    }
  }
  Json list = Json::array();
  for (const auto& [unused, parts] : merges) {
    list.push_back(Json::array({parts.first, parts.second}));
  }
  return list;
}

// Writes spaces as U+2581, with one before every text for a dummy prefix.
Json SpaceMarks(bool dummy_prefix) {
  const Json marks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}};
  if (!dummy_prefix) return marks;
  return {{"type", "Sequence"},
          {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", kSpaceMark}}, marks})}};
}

Json SpaceMarkDecoder(bool dummy_prefix) {
  Json steps =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (dummy_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

absl::StatusOr<std::string> TokenizerJson(const Tokenizer& tokenizer, const TokenizerFiles& files) {
  if (const std::string* json = files.Find(kTokenizerJsonName); json != nullptr) return *json;
  TESSERA_ASSIGN_OR_RETURN(const Vocabulary vocabulary, VocabularyOf(tokenizer));
  if (const auto* bpe = std::get_if<BpeVocabulary>(&vocabulary)) return WriteTokenizerJson(*bpe);
  return WriteTokenizerJson(std::get<SentencePieceModel>(vocabulary));
}

// Returns the name of a token in the files.
std::string TextOf(const Tokenizer& tokenizer, const TokenizerFiles& files, int32_t id) {
  const std::string* contents = files.Find(kSentencePieceName);
  if (contents == nullptr) return std::string(tokenizer.TokenText(id));
  return ParseSentencePieceModel(kSentencePieceName, *contents)->pieces[id].text;
}

BpeVocabulary ByteVocabulary() {
  const ByteTokenizer tokenizer;
  BpeVocabulary vocabulary;
  for (int32_t byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(tokenizer.TokenText(byte));
  }
  vocabulary.split = *FindSplitRules(kGpt2Regex);
  vocabulary.added = {
      {.text = std::string(kEndOfTextMarker), .id = tokenizer.end_of_text(), .special = true}};
  return vocabulary;
}

absl::StatusOr<TokenizerConfig> ConfigIn(const TokenizerFiles& files) {
  const std::string* contents = files.Find(kTokenizerConfigName);
  if (contents == nullptr) return TokenizerConfig();
  return ParseTokenizerConfig(kTokenizerConfigName, *contents);
}

}  // namespace

std::string WriteTokenizerJson(const BpeVocabulary& vocabulary) {
  const TokenTexts texts = ByteLevelTexts(vocabulary);
  std::vector<BpeMerge> sorted = vocabulary.merges;
  std::ranges::sort(sorted, {}, &BpeMerge::rank);
  Json merges = Json::array();
  for (const BpeMerge& merge : sorted) {
    merges.push_back(Json::array({texts.at(merge.left), texts.at(merge.right)}));
  }
  Json file = File(Added(vocabulary.added));
  file["pre_tokenizer"] = PreTokenizer(vocabulary.split);
  file["decoder"] = ByteLevel(/*use_regex=*/true);
  if (const AddedToken* begin = FindAdded(vocabulary, vocabulary.begin_of_text); begin != nullptr) {
    file["post_processor"] = Template(begin->text, begin->id);
  }
  file["model"] = Model(texts, std::move(merges));
  file["model"]["ignore_merges"] = vocabulary.whole_pieces_first;
  return Dump(file);
}

absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceModel& model) {
  TokenTexts texts;
  std::set<std::string_view> distinct;
  std::vector<AddedToken> added;
  Scores scores;
  Json unknown;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const int32_t id = static_cast<int32_t>(texts.size());
    if (!IsValidUtf8(piece.text) || !distinct.insert(piece.text).second) {
      return absl::UnimplementedError(absl::StrCat("tokenizer.json cannot have piece ", id,
                                                   ", whose text is not UTF-8 or not its own"));
    }
    if (piece.type == SentencePieceType::kUserDefined) {
      return absl::UnimplementedError(
          "a SentencePiece model with user-defined pieces cannot be written as tokenizer.json; "
          "transformers converts tokenizer.model itself");
    }
    texts[id] = piece.text;
    if (piece.type == SentencePieceType::kNormal) scores[piece.text] = piece.score;
    if (piece.type == SentencePieceType::kUnknown) unknown = piece.text;
    if (piece.type == SentencePieceType::kControl || piece.type == SentencePieceType::kUnknown) {
      added.push_back({.text = piece.text, .id = id, .special = true});
    }
  }
  TESSERA_ASSIGN_OR_RETURN(Json merges, PieceMerges(scores));
  Json file = File(Added(added));
  file["normalizer"] = SpaceMarks(model.add_dummy_prefix);
  const auto begin = std::ranges::find(added, model.bos_id, &AddedToken::id);
  if (begin != added.end()) file["post_processor"] = Template(begin->text, begin->id);
  file["decoder"] = SpaceMarkDecoder(model.add_dummy_prefix);
  file["model"] = Model(texts, std::move(merges));
  file["model"]["unk_token"] = unknown;
  file["model"]["fuse_unk"] = true;
  file["model"]["byte_fallback"] = true;
  return Dump(file);
}

absl::StatusOr<std::vector<TokenizerFile>> HuggingFaceFiles(const Tokenizer& tokenizer) {
  const TokenizerFiles files(tokenizer.Files());
  TESSERA_ASSIGN_OR_RETURN(std::string json, TokenizerJson(tokenizer, files));
  const int32_t end = tokenizer.end_of_text();
  const int32_t begin = tokenizer.begin_of_text().value_or(end);
  std::vector<TokenizerFile> result = {{kTokenizerJsonName, std::move(json)}};
  if (const std::string* config = files.Find(kTokenizerConfigName); config != nullptr) {
    result.push_back({kTokenizerConfigName, *config});
  } else {
    const nlohmann::ordered_json tokens = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                           {"bos_token", TextOf(tokenizer, files, begin)},
                                           {"eos_token", TextOf(tokenizer, files, end)},
                                           {"clean_up_tokenization_spaces", false}};
    result.push_back({kTokenizerConfigName, tokens.dump(2) + "\n"});
  }
  const nlohmann::ordered_json generation = {{"bos_token_id", begin}, {"eos_token_id", end}};
  result.push_back({"generation_config.json", generation.dump(2) + "\n"});
  return result;
}

const std::string* TokenizerFiles::Find(std::string_view name) const {
  const auto found = std::ranges::find(files_, name, &TokenizerFile::name);
  return found == files_.end() ? nullptr : &found->contents;
}

absl::StatusOr<Vocabulary> VocabularyOf(const Tokenizer& tokenizer) {
  const TokenizerFiles files(tokenizer.Files());
  if (ByteTokenizer::Matches(tokenizer)) return ByteVocabulary();
  TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigIn(files));
  if (const std::string* json = files.Find(kTokenizerJsonName); json != nullptr) {
    return ReadTokenizerJson(kTokenizerJsonName, *json, config);
  }
  if (const std::string* ranks = files.Find(kTiktokenName); ranks != nullptr) {
    return ReadTiktoken(kTiktokenName, *ranks);
  }
  if (const std::string* ids = files.Find(kGpt2VocabularyName); ids != nullptr) {
    return ReadGpt2Files(kGpt2VocabularyName, *ids, *files.Find(kGpt2MergesName), config);
  }
  if (const std::string* contents = files.Find(kSentencePieceName); contents != nullptr) {
    return ParseSentencePieceModel(kSentencePieceName, *contents);
  }
  return absl::UnimplementedError(
      "a tokenizer.bin of llm.c does not say how text is encoded: give the files that it was made "
      "from");
}

}  // namespace tessera
