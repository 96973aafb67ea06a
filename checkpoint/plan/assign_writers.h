#ifndef TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_
#define TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_

#include <cstdint>
#include <vector>

#include "checkpoint/plan/merge_rank_states.h"
#include "layout/box.h"

namespace tessera::ckpt {

// A box and the rank that writes it.
struct Assignment {
  uint32_t tensor;  // into MergedState::tensors
  Box box;
  uint64_t bytes;
  uint32_t rank;
  uint32_t local_tensor;  // into that rank's tensors
  uint32_t local_shard;   // which contains the box
};

// Splits boxes above `max_box_bytes`. Also splits replicas above the larger of `min_split_bytes`
// and 1/32 of a rank's fair share, so that the last assigned one lifts a rank above the others by
// no more than that. A box with a single holder is assigned to it; the others, largest first, are
// each assigned to the holder with the fewest bytes so far.
//
// The result is in the order of tensors and boxes, and a pure function of the input. Cost: n log n
// in the boxes after splitting, plus the ranks of each distinct set of holders once.
std::vector<Assignment> AssignWriters(const MergedState& state, size_t ranks,
                                      uint64_t max_box_bytes, uint64_t min_split_bytes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_
