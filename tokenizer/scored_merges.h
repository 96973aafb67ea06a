#ifndef TESSERA_TOKENIZER_SCORED_MERGES_H_
#define TESSERA_TOKENIZER_SCORED_MERGES_H_

#include <cstddef>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

namespace tessera {

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
  // score. score(left, both), an optional float, is asked once for each pair of neighbours: the
  // text of the left one, and that of both.
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
  // Neighbours that have a score. `length` detects whether either has changed since.
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

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SCORED_MERGES_H_
