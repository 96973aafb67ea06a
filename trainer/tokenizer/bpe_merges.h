#ifndef TESSERA_TRAINER_TOKENIZER_BPE_MERGES_H_
#define TESSERA_TRAINER_TOKENIZER_BPE_MERGES_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
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

// Byte-pair encoding: begins with one token per byte and repeatedly applies the merge of lowest
// rank, from left to right among equals, until none applies. Thread-safe.
class BpeMerges {
 public:
  // `byte_ids`: the token of each byte. Of two merges of the same tokens, the later counts.
  BpeMerges(const std::array<int32_t, 256>& byte_ids, std::span<const BpeMerge> merges);

  // Appends the ids of one piece, in time n log n.
  void Encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Target {
    int32_t rank;
    int32_t merged;
  };

  Target Find(int32_t left, int32_t right) const;
  void EncodeShort(std::string_view piece, std::vector<int32_t>& ids) const;
  void EncodeLong(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Target> targets_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_TOKENIZER_BPE_MERGES_H_
