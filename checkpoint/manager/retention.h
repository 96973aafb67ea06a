#ifndef TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
#define TESSERA_CHECKPOINT_MANAGER_RETENTION_H_

// Which permanent checkpoints a run keeps: a pure policy, without I/O and without a clock.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"

namespace tessera::ckpt {

// A checkpoint is kept if any of these keeps it. Each zero: keeps none; all zero: everything is
// kept.
struct RetentionOptions {
  int64_t newest = 0;                            // that many
  int64_t every_steps = 0;                       // those whose step this divides
  int64_t best = 0;                              // that many, by validation loss
  absl::Duration within = absl::ZeroDuration();  // those saved since

  bool deletes() const {
    return newest > 0 || every_steps > 0 || best > 0 || within > absl::ZeroDuration();
  }
};

struct RetentionCandidate {
  int64_t step = 0;
  absl::Time saved_at = absl::InfiniteFuture();
  std::optional<double> validation_loss;  // measured at this step
  // Complete, its state finite and its loss plausible, as far as is known.
  bool good = true;
};

// Indices of the checkpoints to delete, ascending. `candidates` ascend by step. Never the newest,
// nor the newest good one.
std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
