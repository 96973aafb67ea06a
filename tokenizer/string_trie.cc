#include "tokenizer/string_trie.h"

namespace tessera {

void StringTrie::Add(std::string_view text, int32_t value) {
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [at, is_new] =
        next_.try_emplace(Key(node, byte), static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(-1);
    node = at->second;
  }
  if (values_[node] < 0) values_[node] = value;
}

}  // namespace tessera
