#ifndef TESSERA_TOKENIZER_END_OF_TEXT_H_
#define TESSERA_TOKENIZER_END_OF_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tokenizer/added_tokens.h"

namespace tessera {

inline constexpr char kTokenizerConfigName[] = "tokenizer_config.json";  // in Tokenizer::Files()

// tokenizer_config.json beside a vocabulary, as far as it is used here. Empty: not said.
struct TokenizerConfig {
  std::string contents;
  std::string tokenizer_class;
  std::string eos_token;
};

// Errors: DataLoss naming the file.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& path,
                                                     const std::string& contents);

// The id of <|endoftext|> or <|end_of_text|>, whichever is among the added tokens; with neither,
// that of the configuration's eos_token, or else of </s>. InvalidArgument where there is none of
// them.
absl::StatusOr<int32_t> FindEndOfText(const std::string& path, std::span<const AddedToken> added,
                                      const TokenizerConfig& config);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_END_OF_TEXT_H_
