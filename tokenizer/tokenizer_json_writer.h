#ifndef TESSERA_TOKENIZER_TOKENIZER_JSON_WRITER_H_
#define TESSERA_TOKENIZER_TOKENIZER_JSON_WRITER_H_

// Writes Hugging Face's tokenizer.json.

#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/sentencepiece_model.h"

namespace tessera {

// Byte-level BPE. Preconditions: BpeTokenizer::Create accepts the vocabulary, which has no
// normalizer, and no two merges have the same rank.
std::string WriteTokenizerJson(const BpeVocabulary& vocabulary);

// Precondition: SentencePieceTokenizer::IsLossless(model). The ids are those of sentencepiece for
// every valid UTF-8 text. Errors: Unimplemented for pieces that tokenizer.json cannot describe: two
// of one text, merged ones of equal score, or made of characters that are no pieces.
absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceModel& model);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_TOKENIZER_JSON_WRITER_H_
