#ifndef TESSERA_TOKENIZER_BPE_MERGES_H_
#define TESSERA_TOKENIZER_BPE_MERGES_H_

// Byte-pair encoding of one piece of text, by merges of tokens in a given order, or by merges of
// texts with scores.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tessera {

// A merge of two neighbouring tokens into one. Merges of lower rank come first.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t rank = 0;
  int32_t merged = 0;
};

// Byte-pair encoding: repeatedly applies the merge of lowest rank, from left to right among equals,
// until none applies. Thread-safe.
class BpeMerges {
 public:
  // If two merges have the same tokens, the later one is used.
  explicit BpeMerges(std::span<const BpeMerge> merges);

  // Merges the tokens of one piece, which are the ids from `begin` on, in time n log n.
  void Apply(std::vector<int32_t>& ids, size_t begin) const;

 private:
  struct Target {
    int32_t rank;
    int32_t merged;
  };

  Target Find(int32_t left, int32_t right) const;
  // Merge tokens in place. Return how many are left, at the beginning of `tokens`.
  size_t ApplyToShort(std::span<int32_t> tokens) const;
  size_t ApplyToLong(std::span<int32_t> tokens) const;

  absl::flat_hash_map<uint64_t, Target> targets_;
};

// Byte-pair encoding by scores, as SentencePiece does it: symbols that lie one after the other in a
// text are merged with their neighbours.
class ScoredMerges {
 public:
  // Adds the symbol that follows the last one. A fixed one is never merged.
  void Add(std::string_view text, bool fixed = false) {
    const int index = static_cast<int>(symbols_.size());
    if (!symbols_.empty()) symbols_.back().next = index;
    symbols_.push_back({text, index - 1, -1, fixed});
  }

  // Merges the pair of neighbours with the best score, the leftmost among equals, until none has a
  // score. score(left, both) returns an optional float. It is called once for each pair of
  // neighbours, with the text of the left one and of both.
  template <typename Score>
  void Run(const Score& score);

  // Calls visit(text) for each symbol that is left.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (int i = symbols_.empty() ? -1 : 0; i >= 0; i = symbols_[i].next) visit(symbols_[i].text);
  }

 private:
  struct Symbol {
    std::string_view text;  // empty: merged into its left neighbour
    int previous;
    int next;  // -1: none
    bool fixed;
  };
  // A pair of neighbours that has a score. `length` detects whether either has changed since.
  struct Merge {
    float score;
    int left;
    size_t length;

    bool operator<(const Merge& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  std::vector<Symbol> symbols_;
};

template <typename Score>
void ScoredMerges::Run(const Score& score) {
  std::priority_queue<Merge> merges;
  const auto consider = [&](int at) {
    if (at < 0 || symbols_[at].next < 0) return;
    const Symbol& left = symbols_[at];
    const Symbol& right = symbols_[left.next];
    if (left.fixed || right.fixed) return;
    const size_t length = left.text.size() + right.text.size();
    const std::optional<float> found = score(left.text, {left.text.data(), length});
    if (found.has_value()) merges.push({*found, at, length});
  };
  for (int i = 0; i < static_cast<int>(symbols_.size()); ++i) consider(i);
  while (!merges.empty()) {
    const Merge merge = merges.top();
    merges.pop();
    Symbol& left = symbols_[merge.left];
    if (left.text.empty() || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    if (left.text.size() + right.text.size() != merge.length) continue;
    left.text = {left.text.data(), merge.length};
    right.text = {};
    left.next = right.next;
    if (left.next >= 0) symbols_[left.next].previous = merge.left;
    consider(left.previous);
    consider(merge.left);
  }
}

// Returns the two parts that byte-pair encoding by scores merges last if `symbols` become a single
// token; nullopt if they do not. The symbols lie one after the other. score(text) returns the score
// of a token, an optional float.
//
// If tokens have different scores, these are the parts in every text, because the text beside a
// token does not change the order of the merges in it. With the merge of these parts alone for each
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

#endif  // TESSERA_TOKENIZER_BPE_MERGES_H_
