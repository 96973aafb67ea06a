#ifndef TESSERA_TOKENIZER_STRING_TRIE_H_
#define TESSERA_TOKENIZER_STRING_TRIE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tessera {

// A set of strings with a number for each. Thread-safe once all are added.
class StringTrie {
 public:
  // Keeps the first number of a string that is added twice. Precondition: value >= 0.
  void Add(std::string_view text, int32_t value);
  bool empty() const { return next_.empty(); }

  // Calls visit(length, value) for each string that `text` begins with, the shortest first.
  template <typename Visit>
  void ForEachPrefix(std::string_view text, const Visit& visit) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto found = next_.find(Key(node, text[i]));
      if (found == next_.end()) return;
      node = found->second;
      if (values_[node] >= 0) visit(i + 1, values_[node]);
    }
  }

 private:
  static uint64_t Key(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }

  absl::flat_hash_map<uint64_t, uint32_t> next_;
  std::vector<int32_t> values_ = {-1};  // of each node; -1: no string ends here
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_STRING_TRIE_H_
