#ifndef TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_
#define TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_

#include <cstdint>
#include <vector>

#include "checkpoint/layout/box.h"
#include "checkpoint/plan/merge_plans.h"

namespace tessera::ckpt {

// A box with its writer.
struct Assignment {
  uint32_t tensor;  // into MergedState::tensors
  Box box;
  uint64_t bytes;
  uint32_t rank;
  uint32_t local_tensor;  // of that rank
  uint32_t local_shard;   // which contains the box
};

// Boxes above `max_box_bytes` are cut; replicas also above the larger of `min_split_bytes` and one
// part in 32 of a rank's fair share, so that the last one given to a rank lifts it above the others
// by no more. Boxes with one holder are its own; the others, largest first, each go to that of its
// holders who has the least to write so far.
//
// The result is in the order of tensors and boxes, and a pure function of the input. Cost: n log n
// in the boxes after cutting, and the ranks of each distinct set of holders once.
std::vector<Assignment> AssignWriters(const MergedState& state, size_t ranks,
                                      uint64_t max_box_bytes, uint64_t min_split_bytes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_ASSIGN_WRITERS_H_
