#ifndef TESSERA_TRAINER_DATA_TOKENIZER_H_
#define TESSERA_TRAINER_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The text of a decoded end-of-text token. Encoding never produces that token: the same characters
// in a text are ordinary text.
inline constexpr std::string_view kEndOfTextMarker = "<|endoftext|>";

// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "byte", "sentencepiece" or "llm.c".
  virtual std::string_view kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Precedes each document in the training data; also the prompt for text "from nothing".
  virtual int32_t end_of_text() const = 0;

  // Unimplemented where the tokenizer can only decode.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // The bytes that one id stands for; empty where id is not in [0, vocab_size).
  virtual std::string_view TokenText(int32_t id) const = 0;
  // Saves the tokenizer in its own format, for LoadTokenizer.
  virtual absl::Status Save(const std::string& path) const = 0;

  // The bytes of all ids, joined; may begin or end in the middle of a character. Errors:
  // InvalidArgument naming the position of an id that is not in [0, vocab_size).
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;
};

// Reads a file that any Tokenizer saved, or another program's llm.c tokenizer file or SentencePiece
// BPE model, recognised by its content. Errors: those of the file system; DataLoss with file,
// offset, expected and found.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TOKENIZER_H_
