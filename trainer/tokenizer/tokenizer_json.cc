#include "trainer/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "trainer/tokenizer/split_rules.h"
#include "trainer/tokenizer/unicode_normalizer.h"
#include "trainer/tokenizer/vocabulary_json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// One object of the file and where it lies, for messages.
class Section {
 public:
  Section(std::string path, std::string name, const Json& json)
      : path_(std::move(path)), name_(std::move(name)), json_(json) {}

  const Json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }

  // Null where there is no such member.
  Section operator[](const char* member) const {
    static const Json* null = new Json;
    const bool found = json_.is_object() && json_.contains(member);
    return {path_, name_.empty() ? member : absl::StrCat(name_, ".", member),
            found ? json_[member] : *null};
  }
  Section At(size_t index) const {
    return {path_, absl::StrCat(name_, "[", index, "]"), json_[index]};
  }
  size_t size() const { return json_.is_array() ? json_.size() : 0; }

  // "" where it is not a string.
  std::string text() const { return json_.is_string() ? json_.get<std::string>() : ""; }
  std::string type() const { return (*this)["type"].text(); }
  bool is_true() const { return json_.is_boolean() && json_.get<bool>(); }
  // True for null, false, 0 and "".
  bool is_off() const { return json_.is_null() || json_ == false || json_ == 0 || json_ == ""; }

  absl::Status NotSupported() const {
    const bool typed = json_.is_object() && json_.contains("type");
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", name_, " is ",
                                                   JsonInWords(typed ? json_["type"] : json_),
                                                   ", which is not supported"));
  }
  absl::Status Bad(std::string_view expected) const {
    return absl::DataLossError(absl::StrCat(
        path_, ": ", name_.empty() ? "the file" : name_, " expected to be ",
        absl::string_view(expected.data(), expected.size()), ", found ", JsonInWords(json_)));
  }
  // Refuses members that are not listed: they may change what the tokenizer does.
  absl::Status AllowOnly(const std::set<std::string>& members) const {
    if (!json_.is_object()) return Bad("an object");
    for (const auto& [member, value] : json_.items()) {
      if (!members.contains(member)) return (*this)[member.c_str()].NotSupported();
    }
    return absl::OkStatus();
  }

 private:
  std::string path_;
  std::string name_;
  const Json& json_;
};

// The members of {"type": "Sequence", `list`: [...]}, or the section itself if it is another type.
std::vector<Section> Steps(const Section& section, const char* list) {
  if (section.is_null()) return {};
  if (section.type() != "Sequence") return {section};
  std::vector<Section> steps;
  const Section members = section[list];
  for (size_t i = 0; i < members.size(); ++i) steps.push_back(members.At(i));
  return steps;
}

absl::Status ReadModel(const Section& model, TokenIds& ids, BpeVocabulary& vocabulary,
                       const std::string& path) {
  absl::Status status = model.AllowOnly(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!status.ok()) return status;
  // With a token for every byte, nothing is unknown: unk_token, fuse_unk and byte_fallback have no
  // effect.
  if (!model["type"].is_null() && model.type() != "BPE") return model["type"].NotSupported();
  for (const char* setting : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[setting].is_off()) return model[setting].NotSupported();
  }
  absl::StatusOr<TokenIds> found = ReadTokenIds(path, model["vocab"].json());
  if (!found.ok()) return found.status();
  ids = *std::move(found);
  AddTokens(ids, vocabulary);
  vocabulary.whole_pieces_first = model["ignore_merges"].is_true();
  const Section merges = model["merges"];
  if (!merges.json().is_array()) return merges.Bad("a list of merges");
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges.json()[i];
    std::string left, right;
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) {
        return merges.At(i).Bad("two tokens and a space");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      return merges.At(i).Bad("two tokens");
    }
    status = AddMerge(path, ids, left, right, vocabulary.merges);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckByteLevel(const Section& step) {
  absl::Status status = step.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (!status.ok()) return status;
  return step["add_prefix_space"].is_off() ? absl::OkStatus()
                                           : step["add_prefix_space"].NotSupported();
}

absl::Status ReadSplit(const Section& step, std::optional<SplitRules>& rules) {
  absl::Status status = step.AllowOnly({"type", "pattern", "behavior", "invert"});
  if (!status.ok()) return status;
  // The expressions match all of a text: what is kept and what lies between is the same.
  const std::string behavior = step["behavior"].text();
  const bool inverted = step["invert"].is_true();
  const bool isolated = behavior == "Isolated" && !inverted;
  if (!isolated && !(behavior == "Removed" && inverted)) return step["behavior"].NotSupported();
  const Section regex = step["pattern"]["Regex"];
  if (regex.is_null()) return step["pattern"].NotSupported();
  rules = FindSplitRules(regex.text());
  return rules.has_value() ? absl::OkStatus() : regex.NotSupported();
}

// Expects one split, by an expression or by GPT-2's within ByteLevel, and ByteLevel last.
absl::Status ReadPreTokenizer(const Section& section, SplitRules& rules) {
  const std::vector<Section> steps = Steps(section, "pretokenizers");
  std::optional<SplitRules> found;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    absl::Status status;
    if (last && steps[i].type() == "ByteLevel") {
      status = CheckByteLevel(steps[i]);
      const Section own = steps[i]["use_regex"];  // true unless it says otherwise
      const bool splits = own.is_null() || own.is_true();
      if (splits && found.has_value()) return own.NotSupported();
      if (splits) found = FindSplitRules(kGpt2Regex);
    } else if (!last && !found.has_value() && steps[i].type() == "Split") {
      status = ReadSplit(steps[i], found);
    } else {
      return steps[i].NotSupported();
    }
    if (!status.ok()) return status;
  }
  if (!found.has_value()) return section.NotSupported();
  rules = *found;
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Section& section, const TokenIds& ids,
                             std::vector<AddedToken>& added) {
  // An id that is not in the vocabulary is the next one, as the original assigns it.
  int64_t next = static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < section.size(); ++i) {
    const Section token = section.At(i);
    absl::Status status = token.AllowOnly(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    if (!status.ok()) return status;
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
absl::Status ReadTemplate(const Section& step, std::span<const AddedToken> added,
                          BpeVocabulary& vocabulary) {
  const Section parts = step["single"];
  if (parts.size() == 0) return parts.Bad("a list of parts");
  if (parts.At(0)["SpecialToken"].is_null()) return absl::OkStatus();
  if (parts.size() > 1 && !parts.At(1)["SpecialToken"].is_null()) return parts.NotSupported();
  const Section name = parts.At(0)["SpecialToken"]["id"];
  const auto token = std::ranges::find(added, name.text(), &AddedToken::text);
  if (token == added.end()) return name.Bad("an added token");
  vocabulary.begin_of_text = token->id;
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const Section& section, BpeVocabulary& vocabulary) {
  for (const Section& step : Steps(section, "processors")) {
    if (step.type() == "ByteLevel") continue;  // changes no ids
    if (step.type() != "TemplateProcessing") return step.NotSupported();
    absl::Status status = ReadTemplate(step, vocabulary.added, vocabulary);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const Section& section, UnicodeNormalizer& normalizer) {
  constexpr std::pair<std::string_view, NormalizationForm> kForms[] = {
      {"NFC", NormalizationForm::kNfc},
      {"NFD", NormalizationForm::kNfd},
      {"NFKC", NormalizationForm::kNfkc},
      {"NFKD", NormalizationForm::kNfkd}};
  for (const Section& step : Steps(section, "normalizers")) {
    const std::string type = step.type();
    const auto* form =
        std::ranges::find(kForms, type, [](const auto& named) { return named.first; });
    if (form == std::end(kForms)) return step.NotSupported();
    absl::Status status = step.AllowOnly({"type"});
    if (!status.ok()) return status;
    normalizer.Add(form->second);
  }
  return absl::OkStatus();
}

absl::Status ReadFile(const std::string& path, const Json& json, BpeVocabulary& vocabulary) {
  const Section file(path, "", json);
  absl::Status status =
      file.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"});
  if (!status.ok()) return status;
  if (file["version"].text() != "1.0") return file["version"].NotSupported();
  for (const char* setting : {"truncation", "padding"}) {
    if (!file[setting].is_null()) return file[setting].NotSupported();
  }
  status = ReadNormalizer(file["normalizer"], vocabulary.normalizer);
  if (!status.ok()) return status;
  const std::vector<Section> decoders = Steps(file["decoder"], "decoders");
  const bool decodes = decoders.size() == 1 && decoders[0].type() == "ByteLevel";
  if (!decodes) return file["decoder"].NotSupported();

  TokenIds ids;
  status = ReadModel(file["model"], ids, vocabulary, path);
  if (!status.ok()) return status;
  status = ReadPreTokenizer(file["pre_tokenizer"], vocabulary.split);
  if (!status.ok()) return status;
  status = ReadAddedTokens(file["added_tokens"], ids, vocabulary.added);
  if (!status.ok()) return status;
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
  absl::Status status = ReadFile(path, json, vocabulary);
  if (!status.ok()) return status;
  const absl::StatusOr<int32_t> end_of_text = FindEndOfText(path, vocabulary.added, config);
  if (!end_of_text.ok()) return end_of_text.status();
  vocabulary.end_of_text = *end_of_text;
  vocabulary.files = {{kTokenizerJsonName, contents}};
  if (!config.contents.empty()) {
    vocabulary.files.push_back({kTokenizerConfigName, config.contents});
  }
  return BpeTokenizer::Create(path, std::move(vocabulary));
}

}  // namespace tessera
