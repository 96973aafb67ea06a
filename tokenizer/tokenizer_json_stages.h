#ifndef TESSERA_TOKENIZER_TOKENIZER_JSON_STAGES_H_
#define TESSERA_TOKENIZER_TOKENIZER_JSON_STAGES_H_

// What a tokenizer.json does to text before and after the merges. All refuse, by InvalidArgument
// naming it, what they do not implement; DataLoss: what no program could have written.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/json_section.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/split_rules.h"
#include "tokenizer/text_normalizer.h"

namespace tessera {

absl::StatusOr<TextNormalizer> ReadNormalizer(const JsonSection& normalizer);

// Tokens are bytes, in the alphabet of byte_level.h.
bool IsByteLevel(const JsonSection& decoder);
// Expects one split, by an expression or by GPT-2's within ByteLevel, and ByteLevel last; Digits
// may be before GPT-2's.
absl::StatusOr<SplitRules> ReadByteLevelSplit(const JsonSection& pre_tokenizer);

// Expects Metaspace or nothing.
absl::StatusOr<std::optional<Metaspace>> ReadMetaspace(const JsonSection& pre_tokenizer);
// Expects that U+2581 becomes a space; returns whether the first space is dropped.
absl::StatusOr<bool> ReadSpaceDecoder(const JsonSection& decoder);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_TOKENIZER_JSON_STAGES_H_
