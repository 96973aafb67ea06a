#ifndef TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
#define TESSERA_CHECKPOINT_MANAGER_RETENTION_H_

// Which checkpoints a run keeps: pure policies, without I/O and without a clock.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/include/manager_options.h"

namespace tessera::ckpt {

struct RetentionCandidate {
  int64_t step = 0;
  bool rolling = false;
  absl::Time saved_at = absl::InfiniteFuture();
  std::optional<double> validation_loss;  // measured at this step
  // Complete, its state finite and its loss plausible, as far as is known.
  bool good = true;
};

// Indices of the checkpoints to delete, ascending. `candidates` are permanent and ascend by step.
// Never the newest, nor the newest good one.
std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now);

// Indices of the checkpoints that may be deleted for the save of `coming`, which lacks space, in
// the order in which they are: permanent ones that the policy gives up for it anyway, rolling ones,
// and permanent ones that it gives up when the newest good checkpoint and the coming one count as
// permanent even where they are rolling. `candidates`, of both kinds, ascend by step. Never the
// newest good one: until the save is complete, the run can lose the steps since then alone. Empty
// where none is good.
std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
