#ifndef TESSERA_TOKENIZER_BYTE_TOKENIZER_H_
#define TESSERA_TOKENIZER_BYTE_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tessera {

// A tokenizer with one id per byte, and 256 for end of text: 257 ids. Lossless for any bytes.
// Stored as an llm.c tokenizer file.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 257;

  // Returns whether `tokenizer` has exactly the ids of a ByteTokenizer.
  static bool Matches(const Tokenizer& tokenizer);

  std::string_view kind() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t end_of_text() const override { return 256; }
  std::vector<SpecialToken> special_tokens() const override {
    return {{std::string(kEndOfTextMarker), end_of_text()}};
  }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  std::string_view TokenText(int32_t id) const override;
  std::vector<TokenizerFile> Files() const override;
  // Text may be cut anywhere.
  size_t EncodablePrefix(std::string_view text) const override { return text.size(); }
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BYTE_TOKENIZER_H_
