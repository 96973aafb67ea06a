#ifndef TESSERA_TOKENIZER_BPE_MERGES_H_
#define TESSERA_TOKENIZER_BPE_MERGES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tessera {

// Two neighbouring tokens become one. Merges of lower rank come first.
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
  // Of two merges of the same tokens, the later counts.
  explicit BpeMerges(std::span<const BpeMerge> merges);

  // Merges the tokens of one piece, which are the ids from `begin` on, in time n log n.
  void Apply(std::vector<int32_t>& ids, size_t begin) const;

 private:
  struct Target {
    int32_t rank;
    int32_t merged;
  };

  Target Find(int32_t left, int32_t right) const;
  // Both return how many tokens are left, at the beginning of `tokens`.
  size_t ApplyToShort(std::span<int32_t> tokens) const;
  size_t ApplyToLong(std::span<int32_t> tokens) const;

  absl::flat_hash_map<uint64_t, Target> targets_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_MERGES_H_
