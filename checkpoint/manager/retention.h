#ifndef TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
#define TESSERA_CHECKPOINT_MANAGER_RETENTION_H_

// Which checkpoints a run keeps: the policies, which are pure, without I/O and without a clock, and
// Retention, which deletes by them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "storage/storage.h"

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
// in the order of deletion:
// 1. permanent ones that the policy gives up for the save anyway;
// 2. rolling ones;
// 3. permanent ones that the policy gives up if the newest good checkpoint and the coming one count
//    as permanent even if they are rolling.
//
// `candidates`, of both kinds, ascend by step. Never returns the newest good one, so that until the
// save is complete, the run can lose only the steps since then. Empty if none is good.
std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now);

// A save that is about to begin.
struct ComingSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t needed_bytes = 0;
};

// Deletes checkpoints by a policy. Manifests of permanent checkpoints are read once.
// A checkpoint whose manifest cannot be read, for another reason than damage, stays, and is read
// again the next time. Symbolic links, directories that cannot be listed, and quarantined
// checkpoints are left alone and do not count. A checkpoint that is being read (read_lock.h) stays
// until the next time. Each checkpoint is uncommitted before its files are deleted, so that a crash
// halfway leaves none that looks complete. One thread at a time.
class Retention {
 public:
  // The storage must outlive this object.
  Retention(Storage& storage, const RetentionOptions& options);

  // Deletes the permanent checkpoints that the policy does not keep, and the remains of incomplete
  // saves that are older than the newest checkpoint; but never the checkpoint of `saved_step`, the
  // step that was just saved. Tries all, and returns the first error, also of a checkpoint that
  // could not be read.
  absl::Status Apply(absl::Time now, std::optional<int64_t> saved_step = std::nullopt);

  // Makes space for a save if the storage lacks it: deletes checkpoints that ChooseToMakeRoom()
  // names until there is room, or none if all of them are too small. Returns the deleted
  // directories.
  absl::StatusOr<std::vector<std::string>> MakeRoom(const ComingSave& coming, absl::Time now);

 private:
  // A checkpoint, as described by its manifest and the sizes of its files.
  struct Described {
    RetentionCandidate candidate;
    absl::Status unknown;  // an error other than damage: only the step is known
    bool intact = false;
    uint64_t bytes = 0;
  };

  Described Describe(const CheckpointInfo& checkpoint);
  Described DescribeOnce(const CheckpointInfo& checkpoint);
  // The checkpoints that MakeRoom() may delete, in this order, and the bytes of all of them.
  struct Droppable {
    std::vector<CheckpointInfo> checkpoints;
    uint64_t bytes = 0;
  };
  absl::StatusOr<Droppable> FindDroppable(const ComingSave& coming, absl::Time now);

  Storage& storage_;
  const std::unique_ptr<Removal> removal_;
  const RetentionOptions options_;
  std::map<std::string, Described> described_;  // permanent ones, by directory
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
