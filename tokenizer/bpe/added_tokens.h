#ifndef TESSERA_TOKENIZER_BPE_ADDED_TOKENS_H_
#define TESSERA_TOKENIZER_BPE_ADDED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tokenizer/bpe/normalizers.h"

namespace tessera {

// A token that is found in the text itself, before pre-tokenisation.
struct AddedToken {
  std::string text;
  int32_t id = 0;
  // Whether the token is found only if special tokens are asked for.
  bool special = false;
  // Whether the token is found after the others, in the text between them, and normalised like that
  // text.
  bool normalized = false;
};

// Finds strings in a text: at each position the longest one, in time proportional to the length of
// the text and of the longest string.
class StringFinder {
 public:
  void Add(std::string_view text, int32_t value);
  bool empty() const { return next_.empty(); }

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t value = -1;  // -1: no match
  };
  // Returns the first match at or after `from`.
  Match Find(std::string_view text, size_t from) const;

 private:
  absl::flat_hash_map<uint64_t, uint32_t> next_;  // (node, byte) -> node
  std::vector<int32_t> values_ = {-1};            // of each node
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `normalizer` is applied to the text between the tokens that are not normalized. Precondition:
  // no text of a token is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens, TextNormalizer normalizer = {});

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Returns false if Split() would leave every text as it is.
  bool MayMatch(bool special) const {
    return normalizer_.active() || (special ? !tokens_.empty() : has_ordinary_);
  }

  // Calls `visit`, in order, for each added token of the text, with its id, and for the normalised
  // text between them, with id -1. Special tokens are found only if `special`.
  using Visit = std::function<void(std::string_view text, int32_t id)>;
  void Split(std::string_view text, bool special, const Visit& visit) const;

 private:
  void SplitBy(const StringFinder& finder, std::string_view text, bool special,
               const Visit& visit) const;

  std::vector<AddedToken> tokens_;
  TextNormalizer normalizer_;
  StringFinder raw_, normalized_;  // values: indices of tokens_
  bool has_ordinary_ = false;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_ADDED_TOKENS_H_
