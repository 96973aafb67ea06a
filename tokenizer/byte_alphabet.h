#ifndef TESSERA_TOKENIZER_BYTE_ALPHABET_H_
#define TESSERA_TOKENIZER_BYTE_ALPHABET_H_

#include <array>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/bpe_alphabet.h"
#include "tokenizer/split_rules.h"

namespace tessera {

// A token for each byte, as in GPT-2 and Llama-3.
class ByteAlphabet final : public BpeAlphabet {
 public:
  // `tokens`: the bytes of each. `path` is used in messages. InvalidArgument: a byte has no token.
  static absl::StatusOr<std::shared_ptr<const ByteAlphabet>> Create(
      const std::string& path, std::span<const std::string> tokens, const SplitRules& split);

  size_t PieceLength(std::string_view text) const override {
    return tessera::PieceLength(split_, text);
  }
  void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const override {
    for (const char byte : piece) ids.push_back(ids_[static_cast<uint8_t>(byte)]);
  }

 private:
  explicit ByteAlphabet(const SplitRules& split) : split_(split) { ids_.fill(-1); }

  const SplitRules split_;
  std::array<int32_t, 256> ids_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BYTE_ALPHABET_H_
