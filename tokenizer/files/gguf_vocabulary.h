#ifndef TESSERA_TOKENIZER_FILES_GGUF_VOCABULARY_H_
#define TESSERA_TOKENIZER_FILES_GGUF_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A tokenizer in a GGUF file, as llama.cpp and Ollama read it. Each field is the value of
// "tokenizer.ggml." and a name.
struct GgufVocabulary {
  std::string model;                // "gpt2": BPE of bytes; "llama": SentencePiece
  std::string pre;                  // how text is cut into pieces
  std::vector<std::string> tokens;  // all distinct
  std::vector<int32_t> types;       // of each token, as SentencePieceType numbers them
  std::vector<std::string> merges;  // "gpt2"
  std::vector<float> scores;        // "llama"
  int32_t end_of_text = -1;
  std::optional<int32_t> begin_of_text;  // before every text
  std::optional<int32_t> unknown;
  bool adds_space_prefix = false;
};

// Describes the tokenizer for a model with `model_ids` ids. Those beyond the tokenizer's are unused
// tokens. The program llama.cpp then yields the tokenizer's ids for every valid UTF-8 text, except
// that it does not know cl100k's rule for white space at the end of a text.
//
// Precondition: the model has at least the tokenizer's ids. Errors: Unimplemented, naming the
// property, if llama.cpp's tokenizers lack one of the tokenizer's, and for a tokenizer that can
// only decode.
absl::StatusOr<GgufVocabulary> DescribeForGguf(const Tokenizer& tokenizer, int64_t model_ids);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_GGUF_VOCABULARY_H_
