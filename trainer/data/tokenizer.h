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

// How the end-of-text token reads when decoded. Encoding never produces that token: the same
// characters in a text are just text.
inline constexpr std::string_view kEndOfTextMarker = "<|endoftext|>";

// Text to token ids and back. Threads: all methods may be called at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "byte", "sentencepiece" or "llm.c".
  virtual std::string_view kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Stands before each document in training data; a prompt for text "from nothing".
  virtual int32_t end_of_text() const = 0;

  // Unimplemented where the tokenizer can only decode.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // The bytes that one id stands for; empty where id is not in [0, vocab_size).
  virtual std::string_view TokenText(int32_t id) const = 0;
  // In the tokenizer's own format, for LoadTokenizer.
  virtual absl::Status Save(const std::string& path) const = 0;

  // The bytes of all ids, joined. Part of a character may stand at either end. Errors:
  // InvalidArgument naming the position of an id that is not in [0, vocab_size).
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;
};

// Reads the file that any Tokenizer saved, or another program's llm.c tokenizer file or
// SentencePiece BPE model: told apart by content. Errors: those of the file system; DataLoss with
// file, offset, expected and found.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TOKENIZER_H_
