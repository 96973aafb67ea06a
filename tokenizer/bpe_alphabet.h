#ifndef TESSERA_TOKENIZER_BPE_ALPHABET_H_
#define TESSERA_TOKENIZER_BPE_ALPHABET_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

// What byte-pair encoding begins with: a text is cut into pieces, each of which is encoded on its
// own, and a piece into the tokens that merges join. Thread-safe.
class BpeAlphabet {
 public:
  virtual ~BpeAlphabet() = default;

  // The length of the first piece of a text that is not empty, in bytes; at least 1.
  virtual size_t PieceLength(std::string_view text) const = 0;
  virtual void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const = 0;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_ALPHABET_H_
