#ifndef TESSERA_TOKENIZER_VOCABULARY_JSON_H_
#define TESSERA_TOKENIZER_VOCABULARY_JSON_H_

// The parts of GPT-2's and Hugging Face's files that are alike: {"token": id, ...} and pairs of
// tokens.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe_merges.h"
#include "tokenizer/bpe_tokenizer.h"

namespace tessera {

// Tokens as they are written in the file, and their ids.
using TokenIds = absl::flat_hash_map<std::string, int32_t>;

// Errors: DataLoss naming the token.
absl::StatusOr<TokenIds> ReadTokenIds(const std::string& path, const nlohmann::json& vocabulary);

// Fills in tokens and unreachable ones, from the alphabet of byte_level.h: a token with a character
// outside it stands for its own characters, and no text becomes it.
void AddByteLevelTokens(const TokenIds& ids, BpeVocabulary& vocabulary);

// Fills in tokens that are written as they are, with U+2581 for a space and <0x0A> for a byte.
void AddPlainTokens(const TokenIds& ids, BpeVocabulary& vocabulary);

// Appends the merge of two tokens, of the next rank. Errors: DataLoss where one of the tokens is
// empty, or it or what they become is not in the vocabulary.
absl::Status AddMerge(const std::string& path, const TokenIds& ids, std::string_view left,
                      std::string_view right, std::vector<BpeMerge>& merges);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_VOCABULARY_JSON_H_
