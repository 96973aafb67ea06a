#ifndef TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"

namespace tessera::ckpt {

// parts[r] of rank 0, on rank r. `parts` counts on rank 0 and has one entry per rank there.
//
// Collective. A binomial tree: each part travels over at most log2(size) ranks, and rank 0 sends
// log2(size) messages. Memory: a rank holds the parts of its subtree once.
absl::StatusOr<std::string> Scatter(ProcessGroup& group, std::span<const std::string> parts,
                                    absl::Duration deadline);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_SCATTER_H_
