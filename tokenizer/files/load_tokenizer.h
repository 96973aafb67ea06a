#ifndef TESSERA_TOKENIZER_FILES_LOAD_TOKENIZER_H_
#define TESSERA_TOKENIZER_FILES_LOAD_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Reads a tokenizer, recognised by its contents:
//   tokenizer.json                      Hugging Face
//   vocab.json and merges.txt           GPT-2; either path names both (encoder.json and vocab.bpe)
//   lines of base64 and a rank          tiktoken
//   a SentencePiece BPE model
//   an llm.c tokenizer file
// If a folder holds several, the first of these is read: tokenizer.json, vocab.json, encoder.json,
// *.tiktoken, tokenizer.model, tokenizer.bin. tokenizer_config.json beside the file is read for its
// end-of-text token; a tokenizer_config.json that changes ids is refused. Errors: those of the file
// system; NotFound listing what a folder lacks; DataLoss with the file and what was expected;
// InvalidArgument naming what is not supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_LOAD_TOKENIZER_H_
