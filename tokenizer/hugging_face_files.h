#ifndef TESSERA_TOKENIZER_HUGGING_FACE_FILES_H_
#define TESSERA_TOKENIZER_HUGGING_FACE_FILES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// The files by which transformers finds a tokenizer beside a model: tokenizer.json,
// tokenizer_config.json and generation_config.json (where a generated text begins and ends). A
// tokenizer of Hugging Face's files keeps these. The ids are the tokenizer's own for every valid
// UTF-8 text without U+2581.
//
// Errors: Unimplemented for a tokenizer that can only decode, for SentencePiece models of type
// unigram or that normalise text, and those of WriteTokenizerJson().
absl::StatusOr<std::vector<TokenizerFile>> HuggingFaceFiles(const Tokenizer& tokenizer);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_HUGGING_FACE_FILES_H_
