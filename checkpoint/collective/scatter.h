#ifndef TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"

namespace tessera::ckpt {

// Returns parts[r] of rank 0 on rank r. `parts` is used on rank 0 only, where it has one entry per
// rank.
//
// Collective. A binomial tree: each part passes through at most log2(size) ranks, and rank 0 sends
// log2(size) messages. Memory: a rank holds the parts of its subtree once.
absl::StatusOr<std::string> Scatter(ProcessGroup& group, std::span<const std::string> parts,
                                    absl::Duration deadline);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_
