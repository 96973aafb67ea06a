#ifndef TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
#define TESSERA_CHECKPOINT_MANAGER_RETENTION_H_

// Policies of the checkpoints that a run keeps: pure, without I/O and without a clock.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/include/manager_options.h"

namespace tessera::ckpt {

struct RetentionCandidate {
  int64_t step = 0;
  bool rolling = false;
  absl::Time saved_at = absl::InfiniteFuture();
  std::optional<double> validation_loss;  // measured at this step
  // Whether the checkpoint is complete, its state finite and its loss plausible, as far as is
  // known.
  bool good = true;
};

// Returns the indices of the checkpoints to delete, ascending; never of the newest, nor of the
// newest good one. `candidates` are permanent and ascend by step.
std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now);

// Returns the indices of the checkpoints that may be deleted if the save of `coming` lacks space,
// in the order of deletion: permanent ones that the policy gives up for the save anyway; rolling
// ones; and permanent ones that the policy gives up if the newest good checkpoint and the coming
// one count as permanent even if they are rolling. `candidates`, of both kinds, ascend by step.
// Never returns the newest good one, so that until the save is complete, the run can lose only the
// steps since then. Empty if none is good.
std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now);

// Rolling checkpoints: frequent ones of which only the last two are kept, beside the permanent ones
// of the same run. Each of two slots is a folder of its own that holds one ordinary checkpoint:
//
//   step-00000200/            permanent
//   rolling-0/step-00000250/
//   rolling-1/step-00000225/  replaced next
//
// If directories cannot be renamed, as in object stores, each attempt at a save has a folder in its
// slot, so that remains of another attempt need not be deleted before:
//
//   rolling-0/1a2b3c4d/step-00000250/
//
// The slot that is replaced is emptied before the new checkpoint is written. The other one stays
// complete meanwhile.

inline constexpr std::array<std::string_view, 2> kRollingSlots = {"rolling-0", "rolling-1"};

// The steps of the committed checkpoints in the slots; nullopt: the slot has none.
using RollingSteps = std::array<std::optional<int64_t>, kRollingSlots.size()>;

// Returns the index of the slot for the next checkpoint: one without a checkpoint, otherwise the
// older one.
inline int ChooseRollingSlot(const RollingSteps& steps) {
  return steps[1] < steps[0] ? 1 : 0;  // nullopt is less than any step
}

// Returns "1a2b3c4d", the folder of a new attempt.
std::string MakeRollingAttempt();

bool IsRollingAttempt(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
