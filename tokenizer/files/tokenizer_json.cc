
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizer/bpe/added_tokens.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/normalizers.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/json_files.h"

namespace tessera {
namespace {

// A file with more steps could take any time for a text.
constexpr size_t kMaxNormalizers = 8;

// Reads a replacement of spaces. Others are refused, since a few steps could make texts of any
// length.
absl::Status ReadReplacement(const JsonSection& step, TextNormalizer& normalizer) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "content"}));
  const JsonSection pattern = step["pattern"]["String"];
  if (pattern.is_null()) return step["pattern"].NotSupported();
  if (pattern.text() != " ") return pattern.NotSupported();
  if (step["content"].text() != kSpaceMark) return step["content"].NotSupported();
  normalizer.AddSpaceMarks();
  return absl::OkStatus();
}

absl::Status ReadPrefix(const JsonSection& step, TextNormalizer& normalizer) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "prepend"}));
  if (step["prepend"].text() != kSpaceMark) return step["prepend"].NotSupported();
  normalizer.AddPrefix();
  return absl::OkStatus();
}

absl::Status ReadForm(const JsonSection& step, TextNormalizer& normalizer) {
  constexpr std::pair<std::string_view, NormalizationForm> kForms[] = {
      {"NFC", NormalizationForm::kNfc},
      {"NFD", NormalizationForm::kNfd},
      {"NFKC", NormalizationForm::kNfkc},
      {"NFKD", NormalizationForm::kNfkd}};
  const std::string type = step.type();
  const auto* form = std::ranges::find(kForms, type, [](const auto& named) { return named.first; });
  if (form == std::end(kForms)) return step.NotSupported();
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type"}));
  normalizer.AddForm(form->second);
  return absl::OkStatus();
}

absl::Status CheckByteLevel(const JsonSection& step) {
  TESSERA_RETURN_IF_ERROR(
      step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return step["add_prefix_space"].is_off() ? absl::OkStatus()
                                           : step["add_prefix_space"].NotSupported();
}

absl::Status ReadSplit(const JsonSection& step, std::optional<SplitRules>& rules) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "behavior", "invert"}));
  // The expressions match all of a text: what is kept and what lies between is the same.
  const std::string behavior = step["behavior"].text();
  const bool inverted = step["invert"].is_true();
  const bool isolated = behavior == "Isolated" && !inverted;
  if (!isolated && !(behavior == "Removed" && inverted)) return step["behavior"].NotSupported();
  const JsonSection regex = step["pattern"]["Regex"];
  if (regex.is_null()) return step["pattern"].NotSupported();
  // In these programs (Oniguruma) {1,3}+ is a repetition of a repetition: any number of digits.
  if (regex.text() == kCl100kRegex) return regex.NotSupported();
  rules = FindSplitRules(regex.text());
  return rules.has_value() ? absl::OkStatus() : regex.NotSupported();
}

absl::Status ReadDigits(const JsonSection& step, SplitRules& rules) {
  TESSERA_RETURN_IF_ERROR(step.AllowOnly({"type", "individual_digits"}));
  rules.numbers_apart = true;
  rules.max_digits = step["individual_digits"].is_true() ? 1 : 0;
  return absl::OkStatus();
}

// Reads the members of Metaspace, which is a pre-tokenizer and a decoder.
absl::StatusOr<Metaspace> ReadMetaspaceMembers(const JsonSection& step) {
  constexpr std::pair<std::string_view, Metaspace::Prefix> kPrefixes[] = {
      {"never", Metaspace::Prefix::kNever},
      {"first", Metaspace::Prefix::kFirst},
      {"always", Metaspace::Prefix::kAlways}};
  TESSERA_RETURN_IF_ERROR(step.AllowOnly(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  if (step["replacement"].text() != kSpaceMark) return step["replacement"].NotSupported();
  Metaspace metaspace;
  // The older one of two members that say the same.
  const JsonSection add = step["add_prefix_space"];
  if (!add.is_null() && !add.is_true()) metaspace.prefix = Metaspace::Prefix::kNever;
  if (const JsonSection scheme = step["prepend_scheme"]; !scheme.is_null()) {
    const std::string name = scheme.text();
    const auto* prefix =
        std::ranges::find(kPrefixes, name, [](const auto& named) { return named.first; });
    if (prefix == std::end(kPrefixes)) return scheme.NotSupported();
    metaspace.prefix = prefix->second;
  }
  metaspace.split = step["split"].is_null() || step["split"].is_true();
  return metaspace;
}

// Returns whether the step is {"type": "Replace"} of U+2581 by a space.
bool ReplacesMarks(const JsonSection& step) {
  return step.type() == "Replace" && step["pattern"]["String"].text() == kSpaceMark &&
         step["content"].text() == " ";
}

bool StripsOneSpace(const JsonSection& step) {
  return step.type() == "Strip" && step["content"].text() == " " && step["start"].json() == 1 &&
         step["stop"].json() == 0;
}

absl::StatusOr<TextNormalizer> ReadNormalizer(const JsonSection& normalizer) {
  TextNormalizer read;
  const std::vector<JsonSection> steps = normalizer.Steps("normalizers");
  if (steps.size() > kMaxNormalizers) {
    return normalizer["normalizers"].Bad(absl::StrCat("at most ", kMaxNormalizers, " steps"));
  }
  for (const JsonSection& step : steps) {
    const std::string type = step.type();
    TESSERA_RETURN_IF_ERROR(type == "Replace"   ? ReadReplacement(step, read)
                            : type == "Prepend" ? ReadPrefix(step, read)
                                                : ReadForm(step, read));
  }
  return read;
}

// Returns whether tokens are bytes, in the alphabet of ByteLevelCharacter().
bool IsByteLevel(const JsonSection& decoder) {
  const std::vector<JsonSection> steps = decoder.Steps("decoders");
  return steps.size() == 1 && steps[0].type() == "ByteLevel";
}

// Expects one split, by an expression or by GPT-2's within ByteLevel, and ByteLevel last; Digits
// may come before GPT-2's.
absl::StatusOr<SplitRules> ReadByteLevelSplit(const JsonSection& pre_tokenizer) {
  const std::vector<JsonSection> steps = pre_tokenizer.Steps("pretokenizers");
  const bool digits = steps.size() > 1 && steps[0].type() == "Digits";
  std::optional<SplitRules> found;
  for (size_t i = digits ? 1 : 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    if (last && steps[i].type() == "ByteLevel") {
      TESSERA_RETURN_IF_ERROR(CheckByteLevel(steps[i]));
      const JsonSection own = steps[i]["use_regex"];  // true unless it says otherwise
      const bool splits = own.is_null() || own.is_true();
      if (splits && found.has_value()) return own.NotSupported();
      if (splits) found = FindSplitRules(kGpt2Regex);
    } else if (!last && !digits && !found.has_value() && steps[i].type() == "Split") {
      TESSERA_RETURN_IF_ERROR(ReadSplit(steps[i], found));
    } else {
      return steps[i].NotSupported();
    }
  }
  if (!found.has_value()) return pre_tokenizer.NotSupported();
  if (digits) TESSERA_RETURN_IF_ERROR(ReadDigits(steps[0], *found));
  return *found;
}

// Expects Metaspace or nothing.
absl::StatusOr<std::optional<Metaspace>> ReadMetaspace(const JsonSection& pre_tokenizer) {
  const std::vector<JsonSection> steps = pre_tokenizer.Steps("pretokenizers");
  if (steps.empty()) return std::nullopt;
  if (steps.size() > 1) return steps[1].NotSupported();
  if (steps[0].type() != "Metaspace") return steps[0].NotSupported();
  return ReadMetaspaceMembers(steps[0]);
}

// Expects that U+2581 becomes a space; returns whether the first space is dropped.
absl::StatusOr<bool> ReadSpaceDecoder(const JsonSection& decoder) {
  bool has_spaces = false, drops_first = false;
  for (const JsonSection& step : decoder.Steps("decoders")) {
    if (step.type() == "Metaspace") {
      TESSERA_ASSIGN_OR_RETURN(const Metaspace metaspace, ReadMetaspaceMembers(step));
      has_spaces = true;
      drops_first = metaspace.prefix != Metaspace::Prefix::kNever;
    } else if (ReplacesMarks(step)) {
      has_spaces = true;
    } else if (StripsOneSpace(step)) {
      drops_first = true;
    } else if (step.type() != "ByteFallback" && step.type() != "Fuse") {
      return step.NotSupported();
    }
  }
  if (!has_spaces) return decoder.NotSupported();
  return drops_first;
}

using Json = nlohmann::json;

absl::Status ReadMergeList(const std::string& path, const JsonSection& section, const TokenIds& ids,
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

// Reads all of the model but how its tokens are written. With a token for every byte, nothing is
// unknown: unk_token and fuse_unk have no effect.
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
  TESSERA_RETURN_IF_ERROR(ReadMergeList(path, model["merges"], ids, vocabulary.merges));
  return ids;
}

// Reads tokens made of bytes, as in GPT-2 and Llama-3.
absl::Status ReadByteLevel(const JsonSection& file, const TokenIds& ids,
                           BpeVocabulary& vocabulary) {
  AddByteLevelTokens(ids, vocabulary);
  vocabulary.whole_pieces_first = file["model"]["ignore_merges"].is_true();
  TESSERA_ASSIGN_OR_RETURN(vocabulary.split, ReadByteLevelSplit(file["pre_tokenizer"]));
  return absl::OkStatus();
}

// Reads tokens made of characters, as in Llama-2 and Mistral.
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

// Reads the tokens that a template puts before one text. Those after it do not matter.
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

absl::StatusOr<BpeVocabulary> ReadTokenizerJson(const std::string& path,
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
  TESSERA_RETURN_IF_ERROR(CheckConfig(path, vocabulary, config));
  vocabulary.files = {{kTokenizerJsonName, contents}};
  if (!config.contents.empty()) vocabulary.files.push_back({kTokenizerConfigName, config.contents});
  return vocabulary;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizerJson(const std::string& path,
                                                                 const std::string& contents,
                                                                 const TokenizerConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(BpeVocabulary vocabulary, ReadTokenizerJson(path, contents, config));
  return BpeTokenizer::Create(path, std::move(vocabulary));
}

}  // namespace tessera
