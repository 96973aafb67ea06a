#include "tokenizer/end_of_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A string, or the "content" of an object.
std::string TokenIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return {};
  const auto content = found->find("content");
  return content != found->end() && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& path,
                                                     const std::string& contents) {
  const Json json = Json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": expected a JSON object, found none"));
  }
  TokenizerConfig config{.contents = contents};
  config.tokenizer_class = TokenIn(json, "tokenizer_class");
  config.eos_token = TokenIn(json, "eos_token");
  return config;
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
