#include "tokenizer/bpe/merges.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

namespace tessera {
namespace {

// Up to this many tokens, searching all pairs for the lowest rank is faster than a heap.
constexpr size_t kShortPiece = 48;
constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A token of a long piece.
struct Symbol {
  int32_t id;  // -1: merged into its left neighbour
  int64_t previous;
  int64_t next;  // -1: none
};

// A merge that applied when it was found; the ids detect whether it still does.
struct Candidate {
  int32_t rank;
  int32_t merged;
  int64_t at;
  int32_t left;
  int32_t right;

  // The top of a heap is the lowest rank, and the leftmost among equals.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges) {
  targets_.reserve(merges.size());
  for (const BpeMerge& merge : merges) {
    targets_[PairKey(merge.left, merge.right)] = {merge.rank, merge.merged};
  }
}

BpeMerges::Target BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = targets_.find(PairKey(left, right));
  return found == targets_.end() ? Target{kNoMerge, -1} : found->second;
}

size_t BpeMerges::ApplyToShort(std::span<int32_t> tokens) const {
  std::array<Target, kShortPiece> merges;  // of each token with the next one
  size_t count = tokens.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = Find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoMerge) break;
    tokens[best] = merges[best].merged;
    std::copy(&tokens[best] + 2, &tokens[0] + count, &tokens[best] + 1);
    std::copy(&merges[best] + 1, &merges[0] + count - 1, &merges[best]);
    --count;
    if (best + 1 < count) merges[best] = Find(tokens[best], tokens[best + 1]);
    if (best > 0) merges[best - 1] = Find(tokens[best - 1], tokens[best]);
  }
  return count;
}

size_t BpeMerges::ApplyToLong(std::span<int32_t> tokens) const {
  const int64_t count = static_cast<int64_t>(tokens.size());
  std::vector<Symbol> symbols(tokens.size());
  for (int64_t i = 0; i < count; ++i) symbols[i] = {tokens[i], i - 1, i + 1 < count ? i + 1 : -1};
  std::vector<Candidate> found;
  const auto candidate = [&](int64_t at) {
    const int64_t next = at < 0 ? -1 : symbols[at].next;
    if (next < 0) return Candidate{kNoMerge, -1, at, -1, -1};
    const Target target = Find(symbols[at].id, symbols[next].id);
    return Candidate{target.rank, target.merged, at, symbols[at].id, symbols[next].id};
  };
  for (int64_t i = 0; i < count; ++i) {
    if (const Candidate merge = candidate(i); merge.rank != kNoMerge) found.push_back(merge);
  }
  std::priority_queue<Candidate> merges(std::less<Candidate>(), std::move(found));
  while (!merges.empty()) {
    const Candidate merge = merges.top();
    merges.pop();
    Symbol& left = symbols[merge.at];
    if (left.id != merge.left || left.next < 0 || symbols[left.next].id != merge.right) continue;
    Symbol& right = symbols[left.next];
    left.id = merge.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = merge.at;
    for (const int64_t at : {left.previous, merge.at}) {
      if (const Candidate next = candidate(at); next.rank != kNoMerge) merges.push(next);
    }
  }
  size_t left = 0;
  for (int64_t i = 0; i >= 0; i = symbols[i].next) tokens[left++] = symbols[i].id;
  return left;
}

void BpeMerges::Apply(std::vector<int32_t>& ids, size_t begin) const {
  const std::span<int32_t> tokens = std::span(ids).subspan(begin);
  if (tokens.empty()) return;
  const size_t left = tokens.size() <= kShortPiece ? ApplyToShort(tokens) : ApplyToLong(tokens);
  ids.resize(begin + left);
}

}  // namespace tessera
