#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizer/character_alphabet.h"
#include "tokenizer/json_section.h"
#include "tokenizer/tokenizer_json_stages.h"
#include "tokenizer/vocabulary_json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

absl::Status ReadMerges(const std::string& path, const JsonSection& section, const TokenIds& ids,
                        std::vector<BpeMerge>& merges) {
  if (!section.json().is_array()) return section.Bad("a list of merges");
  for (size_t i = 0; i < section.size(); ++i) {
    const Json& merge = section.json()[i];
    std::string left, right;
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) {
        return section.At(i).Bad("two tokens and a space");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      return section.At(i).Bad("two tokens");
    }
    TESSERA_RETURN_IF_ERROR(AddMerge(path, ids, left, right, merges));
  }
  return absl::OkStatus();
}

// All of the model but how its tokens are written. With a token for every byte, nothing is unknown:
// unk_token and fuse_unk have no effect.
absl::StatusOr<TokenIds> ReadModel(const std::string& path, const JsonSection& model,
                                   BpeVocabulary& vocabulary) {
  TESSERA_RETURN_IF_ERROR(model.AllowOnly(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (!model["type"].is_null() && model.type() != "BPE") return model["type"].NotSupported();
  for (const char* setting : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[setting].is_off()) return model[setting].NotSupported();
  }
  TESSERA_ASSIGN_OR_RETURN(TokenIds ids, ReadTokenIds(path, model["vocab"].json()));
  TESSERA_RETURN_IF_ERROR(ReadMerges(path, model["merges"], ids, vocabulary.merges));
  return ids;
}

// Tokens made of bytes, as in GPT-2 and Llama-3.
absl::Status ReadByteLevel(const JsonSection& file, const TokenIds& ids,
                           BpeVocabulary& vocabulary) {
  AddByteLevelTokens(ids, vocabulary);
  vocabulary.whole_pieces_first = file["model"]["ignore_merges"].is_true();
  TESSERA_ASSIGN_OR_RETURN(vocabulary.split, ReadByteLevelSplit(file["pre_tokenizer"]));
  return absl::OkStatus();
}

// Tokens made of characters, as in Llama-2 and Mistral.
absl::Status ReadCharacters(const std::string& path, const JsonSection& file, const TokenIds& ids,
                            BpeVocabulary& vocabulary) {
  const JsonSection model = file["model"];
  if (!model["byte_fallback"].is_true()) return model["byte_fallback"].NotSupported();
  if (!model["ignore_merges"].is_off()) return model["ignore_merges"].NotSupported();
  AddPlainTokens(ids, vocabulary);
  TESSERA_ASSIGN_OR_RETURN(vocabulary.metaspace, ReadMetaspace(file["pre_tokenizer"]));
  const bool cut_before_space = vocabulary.metaspace.has_value() && vocabulary.metaspace->split;
  TESSERA_ASSIGN_OR_RETURN(
      vocabulary.alphabet,
      CharacterAlphabet::Create(path, ids, vocabulary.merges, cut_before_space));
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const JsonSection& section, const TokenIds& ids,
                             std::vector<AddedToken>& added) {
  // An id that is not in the vocabulary is the next one, as the original assigns it.
  int64_t next = static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < section.size(); ++i) {
    const JsonSection token = section.At(i);
    TESSERA_RETURN_IF_ERROR(token.AllowOnly(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    for (const char* setting : {"single_word", "lstrip", "rstrip"}) {
      if (!token[setting].is_off()) return token[setting].NotSupported();
    }
    const std::string text = token["content"].text();
    if (text.empty()) return token["content"].Bad("the text of a token");
    const auto known = ids.find(text);
    const int64_t expected = known == ids.end() ? next : known->second;
    if (token["id"].json() != expected) return token["id"].Bad(absl::StrCat(expected));
    next = std::max(next, expected + 1);
    added.push_back({.text = text,
                     .id = static_cast<int32_t>(expected),
                     .special = token["special"].is_true(),
                     .normalized = token["normalized"].is_true()});
  }
  return absl::OkStatus();
}

// Only the beginning of one text matters: a template puts tokens before and after it.
absl::Status ReadTemplate(const JsonSection& step, std::span<const AddedToken> added,
                          BpeVocabulary& vocabulary) {
  const JsonSection parts = step["single"];
  if (parts.size() == 0) return parts.Bad("a list of parts");
  if (parts.At(0)["SpecialToken"].is_null()) return absl::OkStatus();
  if (parts.size() > 1 && !parts.At(1)["SpecialToken"].is_null()) return parts.NotSupported();
  const JsonSection name = parts.At(0)["SpecialToken"]["id"];
  const auto token = std::ranges::find(added, name.text(), &AddedToken::text);
  if (token == added.end()) return name.Bad("an added token");
  vocabulary.begin_of_text = token->id;
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonSection& section, BpeVocabulary& vocabulary) {
  for (const JsonSection& step : section.Steps("processors")) {
    if (step.type() == "ByteLevel") continue;  // changes no ids
    if (step.type() != "TemplateProcessing") return step.NotSupported();
    TESSERA_RETURN_IF_ERROR(ReadTemplate(step, vocabulary.added, vocabulary));
  }
  return absl::OkStatus();
}

absl::Status ReadFile(const std::string& path, const Json& json, BpeVocabulary& vocabulary) {
  const JsonSection file(path, "", json);
  TESSERA_RETURN_IF_ERROR(
      file.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (file["version"].text() != "1.0") return file["version"].NotSupported();
  for (const char* setting : {"truncation", "padding"}) {
    if (!file[setting].is_null()) return file[setting].NotSupported();
  }
  TESSERA_ASSIGN_OR_RETURN(vocabulary.normalizer, ReadNormalizer(file["normalizer"]));
  const bool byte_level = IsByteLevel(file["decoder"]);
  if (!byte_level) {
    TESSERA_ASSIGN_OR_RETURN(vocabulary.drops_first_space, ReadSpaceDecoder(file["decoder"]));
  }
  TESSERA_ASSIGN_OR_RETURN(const TokenIds ids, ReadModel(path, file["model"], vocabulary));
  TESSERA_RETURN_IF_ERROR(byte_level ? ReadByteLevel(file, ids, vocabulary)
                                     : ReadCharacters(path, file, ids, vocabulary));
  TESSERA_RETURN_IF_ERROR(ReadAddedTokens(file["added_tokens"], ids, vocabulary.added));
  return ReadPostProcessor(file["post_processor"], vocabulary);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizerJson(const std::string& path,
                                                                 const std::string& contents,
                                                                 const TokenizerConfig& config) {
  const Json json = Json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("model")) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected a JSON object with a model, found none"));
  }
  BpeVocabulary vocabulary;
  TESSERA_RETURN_IF_ERROR(ReadFile(path, json, vocabulary));
  TESSERA_ASSIGN_OR_RETURN(vocabulary.end_of_text, FindEndOfText(path, vocabulary.added, config));
  vocabulary.files = {{kTokenizerJsonName, contents}};
  if (!config.contents.empty()) {
    vocabulary.files.push_back({kTokenizerConfigName, config.contents});
  }
  return BpeTokenizer::Create(path, std::move(vocabulary));
}

}  // namespace tessera
