#ifndef TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_
#define TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_

// Writes the files by which Hugging Face's programs find a tokenizer.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Byte-level BPE. Preconditions: BpeTokenizer::Create accepts the vocabulary, which has no
// normalizer, and no two merges have the same rank.
std::string WriteTokenizerJson(const BpeVocabulary& vocabulary);

// Precondition: SentencePieceTokenizer reads the model. Every valid UTF-8 text gets the same ids as
// from sentencepiece. Errors: Unimplemented for pieces that tokenizer.json cannot describe: those
// of the model's user, two pieces of one text, merged pieces of equal score, and pieces made of
// characters that are not pieces themselves.
absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceModel& model);

// The files by which transformers finds a tokenizer beside a model: tokenizer.json,
// tokenizer_config.json and generation_config.json (where a generated text begins and ends). A
// tokenizer of Hugging Face's files keeps these. The ids are the tokenizer's own for every valid
// UTF-8 text without U+2581.
//
// Errors: Unimplemented for a tokenizer that can only decode, and those of WriteTokenizerJson().
absl::StatusOr<std::vector<TokenizerFile>> HuggingFaceFiles(const Tokenizer& tokenizer);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_
