#include "tokenizer/files/json_files.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "tokenizer/bpe/alphabet.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxQuotedBytes = 200;

// Returns one more than the largest id.
size_t CountIds(const TokenIds& ids) {
  size_t count = 0;
  for (const auto& [token, id] : ids) count = std::max(count, static_cast<size_t>(id) + 1);
  return count;
}

using Json = nlohmann::json;

// Returns the member's value if it is a string, or its "content" if it is an object.
std::string TokenIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return {};
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace

std::string JsonInWords(const nlohmann::json& json) {
  if (json.is_structured()) return json.is_array() ? "a list" : "an object";
  std::string text = json.dump();
  if (text.size() > kMaxQuotedBytes) text = absl::StrCat(text.substr(0, kMaxQuotedBytes), "...");
  return text;
}

JsonSection JsonSection::operator[](const char* member) const {
  static const Json* null = new Json;
  const bool found = json_.is_object() && json_.contains(member);
  return {path_, name_.empty() ? member : absl::StrCat(name_, ".", member),
          found ? json_[member] : *null};
}

JsonSection JsonSection::At(size_t index) const {
  return {path_, absl::StrCat(name_, "[", index, "]"), json_[index]};
}

std::vector<JsonSection> JsonSection::Steps(const char* list) const {
  if (is_null()) return {};
  if (type() != "Sequence") return {*this};
  std::vector<JsonSection> steps;
  const JsonSection members = (*this)[list];
  for (size_t i = 0; i < members.size(); ++i) steps.push_back(members.At(i));
  return steps;
}

absl::Status JsonSection::NotSupported() const {
  const bool typed = json_.is_object() && json_.contains("type");
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", name_, " is ",
                                                 JsonInWords(typed ? json_["type"] : json_),
                                                 ", which is not supported"));
}

absl::Status JsonSection::Bad(std::string_view expected) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", name_.empty() ? "the file" : name_,
                                          " expected to be ", View(expected), ", found ",
                                          JsonInWords(json_)));
}

absl::Status JsonSection::AllowOnly(const std::set<std::string>& members) const {
  if (!json_.is_object()) return Bad("an object");
  for (const auto& [member, value] : json_.items()) {
    if (!members.contains(member)) return (*this)[member.c_str()].NotSupported();
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenIds> ReadTokenIds(const std::string& path, const nlohmann::json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected a vocabulary of tokens and ids, found none"));
  }
  const int64_t limit = static_cast<int64_t>(vocabulary.size()) + kMaxIdGap;
  TokenIds ids;
  std::vector<bool> taken(limit);
  for (const auto& [token, id] : vocabulary.items()) {
    const bool valid = id.is_number_integer() && id >= 0 && id < limit;
    if (!valid || taken[id.get<int64_t>()]) {
      return absl::DataLossError(absl::StrCat(path, ": expected an id of its own below ", limit,
                                              " for token ", token, ", found ", JsonInWords(id)));
    }
    taken[id.get<int64_t>()] = true;
    ids[token] = id.get<int32_t>();
  }
  return ids;
}

void AddByteLevelTokens(const TokenIds& ids, BpeVocabulary& vocabulary) {
  vocabulary.tokens.resize(CountIds(ids));
  for (const auto& [token, id] : ids) {
    if (std::optional<std::string> bytes = ByteLevelDecode(token); bytes.has_value()) {
      vocabulary.tokens[id] = *std::move(bytes);
    } else {
      vocabulary.unreachable.push_back({token, id});
    }
  }
}

void AddPlainTokens(const TokenIds& ids, BpeVocabulary& vocabulary) {
  vocabulary.tokens.resize(CountIds(ids));
  for (const auto& [token, id] : ids) {
    const int byte = ParseBytePiece(token);
    vocabulary.tokens[id] = byte < 0 ? WithSpaces(token) : std::string(1, static_cast<char>(byte));
  }
}

absl::Status AddMerge(const std::string& path, const TokenIds& ids, std::string_view left,
                      std::string_view right, std::vector<BpeMerge>& merges) {
  if (left.empty() || right.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": merge ", merges.size(), " expected two tokens, found an empty one"));
  }
  const std::string merged = absl::StrCat(View(left), View(right));
  int32_t found[3];
  int32_t* next = found;
  for (const std::string_view token : {left, right, std::string_view(merged)}) {
    const auto id = ids.find(View(token));
    if (id == ids.end()) {
      return absl::DataLossError(
          absl::StrCat(path, ": merge ", merges.size(), " of ", View(left), " and ", View(right),
                       " expected in the vocabulary, found no token ", View(token)));
    }
    *next++ = id->second;
  }
  merges.push_back({found[0], found[1], static_cast<int32_t>(merges.size()), found[2]});
  return absl::OkStatus();
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& path,
                                                     const std::string& contents) {
  const Json json = Json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": expected a JSON object, found none"));
  }
  TokenizerConfig config{.contents = contents};
  config.tokenizer_class = TokenIn(json, "tokenizer_class");
  config.eos_token = TokenIn(json, "eos_token");
  const JsonSection file(path, "", json);
  const JsonSection prefix = file["add_prefix_space"];
  if (prefix.json().is_boolean()) config.add_prefix_space = prefix.is_true();
  const JsonSection added = file["added_tokens_decoder"];
  if (!added.is_null() && !added.json().is_object()) return added.Bad("an object");
  for (const auto& [id, unused] : added.json().items()) {
    const JsonSection token = added[id.c_str()];
    SpecialToken read{token["content"].text()};
    if (read.text.empty() || !absl::SimpleAtoi(id, &read.id)) return token.Bad("a token by its id");
    config.added.push_back(std::move(read));
    for (const char* setting : {"single_word", "lstrip", "rstrip"}) {
      if (!token[setting].is_off()) return token[setting].NotSupported();
    }
  }
  return config;
}

absl::Status ParseAddedTokens(const std::string& path, const std::string& contents,
                              TokenizerConfig& config) {
  const Json json = Json::parse(contents, nullptr, /*allow_exceptions=*/false);
  const JsonSection file(path, "", json);
  if (!json.is_object()) return file.Bad("an object");
  for (const auto& [text, id] : json.items()) {
    if (!id.is_number_integer()) return file[text.c_str()].Bad("an id");
    config.added.push_back({text, id.get<int32_t>()});
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const std::string& path, const BpeVocabulary& vocabulary,
                         const TokenizerConfig& config) {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what...));
  };
  const bool adds_prefix = vocabulary.drops_first_space;
  if (config.add_prefix_space.value_or(adds_prefix) != adds_prefix) {
    return refuse("add_prefix_space is ", adds_prefix ? "false" : "true",
                  " in tokenizer_config.json, but not in the vocabulary, which is not supported");
  }
  for (const SpecialToken& token : config.added) {
    const auto found = std::ranges::find(vocabulary.added, token.text, &AddedToken::text);
    if (found == vocabulary.added.end() || found->id != token.id) {
      return refuse("added token ", token.text, " of id ", token.id,
                    " in tokenizer_config.json or added_tokens.json is not an added token here, "
                    "which is not supported: a tokenizer.json with it would be");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> FindEndOfText(const std::string& path, std::span<const AddedToken> added,
                                      const TokenizerConfig& config) {
  for (const std::string_view text :
       {std::string_view("<|endoftext|>"), std::string_view("<|end_of_text|>"),
        std::string_view(config.eos_token), std::string_view("</s>")}) {
    const auto found = std::ranges::find(added, text, &AddedToken::text);
    if (!text.empty() && found != added.end()) return found->id;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": there is no end-of-text token: expected <|endoftext|>, <|end_of_text|> or </s> among the "
      "added tokens, or an eos_token that is one of them in tokenizer_config.json beside it"));
}

}  // namespace tessera
