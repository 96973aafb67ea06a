#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/string_trie.h"

namespace tessera {

// The replacements of a model (nmt_nfkc and the like), as SentencePiece compiles them: a double
// array (Aoe, 1989) of what is replaced, and the replacements, each ending in a NUL.
class PrecompiledCharsmap {
 public:
  PrecompiledCharsmap() = default;  // replaces nothing

  // Errors: DataLoss where the parts do not fit the bytes.
  static absl::StatusOr<PrecompiledCharsmap> Parse(const std::string& path, std::string_view bytes);

  struct Replacement {
    size_t length = 0;  // of what is replaced; 0: nothing
    std::string_view by;
  };
  // Of the longest beginning of the text that has one.
  Replacement Find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

// What SentencePiece does to a text before it cuts it into pieces: characters are replaced, what is
// no UTF-8 becomes U+FFFD, superfluous spaces are removed and the others become U+2581, as the
// model says. Thread-safe.
class SentencePieceNormalizer {
 public:
  static absl::StatusOr<SentencePieceNormalizer> Create(const std::string& path,
                                                        const SentencePieceModel& model);

  std::string Normalize(std::string_view text) const;

 private:
  struct Prefix {
    size_t length;
    std::string_view by;
  };
  Prefix NormalizePrefix(std::string_view text) const;

  PrecompiledCharsmap charsmap_;
  StringTrie user_defined_;  // left as they are
  bool add_dummy_prefix_ = false;
  bool remove_extra_whitespaces_ = false;
  bool whitespace_as_suffix_ = false;
  std::string_view space_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
