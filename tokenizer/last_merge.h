#ifndef TESSERA_TOKENIZER_LAST_MERGE_H_
#define TESSERA_TOKENIZER_LAST_MERGE_H_

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/scored_merges.h"

namespace tessera {

// The two parts that byte-pair encoding by scores merges last where `symbols`, which lie one after
// the other, become a single token; nullopt where they do not. score(text): an optional float, the
// score of a token.
//
// Where tokens have different scores, these are the parts in every text: what lies beside a token
// does not change the order of the merges in it. With the merge of these parts alone for each
// token, encoding is the same as with every pair that makes one.
template <typename Score>
std::optional<std::pair<std::string_view, std::string_view>> LastMerge(
    const std::vector<std::string_view>& symbols, const Score& score) {
  size_t size = 0;
  ScoredMerges merges;
  for (const std::string_view symbol : symbols) {
    merges.Add(symbol);
    size += symbol.size();
  }
  merges.Run([&](std::string_view, std::string_view both) -> std::optional<float> {
    return both.size() == size ? std::nullopt : score(both);
  });
  std::vector<std::string_view> parts;
  merges.ForEach([&](std::string_view part) { parts.push_back(part); });
  if (parts.size() != 2) return std::nullopt;
  return std::pair(parts[0], parts[1]);
}

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_LAST_MERGE_H_
