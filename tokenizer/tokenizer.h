#ifndef TESSERA_TOKENIZER_TOKENIZER_H_
#define TESSERA_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// The text of a decoded end-of-text token, for tokenizers that do not have their own.
inline constexpr std::string_view kEndOfTextMarker = "<|endoftext|>";

struct SpecialToken {
  std::string text;
  int32_t id = 0;
};

// A file that stores a tokenizer, by the name that it has in a folder.
struct TokenizerFile {
  std::string name;
  std::string contents;
};

// Converts text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns "byte", "sentencepiece", "llm.c" or "bpe".
  virtual std::string_view kind() const = 0;
  // Returns one more than the largest id.
  virtual int64_t vocab_size() const = 0;
  // Returns the token that precedes each document in the training data, and is the prompt for text
  // "from nothing".
  virtual int32_t end_of_text() const = 0;
  // Returns the token that the tokenizer's own files put before every text, if any. Encoding does
  // not add it.
  virtual std::optional<int32_t> begin_of_text() const { return std::nullopt; }
  // Returns the tokens that ordinary text does not produce.
  virtual std::vector<SpecialToken> special_tokens() const { return {}; }

  // Encodes a text. Special tokens are not recognised: their characters are ordinary text.
  // Unimplemented if the tokenizer can only decode.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // Encodes a text, and special tokens in it as their ids: the longest one that begins at a place.
  // By default the text between them is encoded as texts of their own.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeWithSpecialTokens(std::string_view text) const;
  // Returns how many bytes of `text`, which will continue, may be encoded on their own, so that
  // their ids and the rest's ids are the ids of the whole. 0 if more of the text must be known
  // first.
  virtual size_t EncodablePrefix(std::string_view text) const;

  // Returns the bytes for which one id stands; empty if no token has this id.
  virtual std::string_view TokenText(int32_t id) const = 0;
  // Returns the files from which the same tokenizer can be loaded.
  virtual std::vector<TokenizerFile> Files() const = 0;

  // Returns the bytes of all ids, joined, without the space that encoding may have put before a
  // text. The result may begin or end in the middle of a character. Errors: InvalidArgument, naming
  // the position of an id that is not in [0, vocab_size).
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const;
};

// Returns the length of the longest prefix of a text that ends after a line or, if no line ends,
// between two characters. Positive unless the text is empty.
size_t LastCut(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_TOKENIZER_H_
