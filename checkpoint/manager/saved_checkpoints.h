#ifndef TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_

// What a run has saved in a folder, the root of a storage: permanent checkpoints and rolling ones
// (rolling.h), and what is done with them. Called by one process of the run, which holds the
// folder's lock where others may save. Which of them a run resumes from: resume.h.
// CheckpointManager (checkpoint_manager.h) does all of it for a job.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/saved_checkpoints.h"
#include "checkpoint/manager/retention.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The manifest of a checkpoint whose files are there, have the sizes that it states, and begin with
// the headers that belong to it. Contents are not read: a load checks their checksums. DataLoss
// names the damage, which is read again: bytes that were damaged on their way from a remote storage
// are intact the next time. NotFound where no checkpoint is committed.
absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory);

// A message about what is in `directory`, for a sentence that has named the directory already.
std::string WithoutDirectory(const Storage& storage, std::string_view directory,
                             absl::string_view message);

// Quarantines, as "abandoned", the checkpoints of later steps than `step`: those of a future that a
// run abandons when it continues from an earlier step on request. Returns the new directories. The
// error of a directory of a later step that cannot be listed, with nothing done.
absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, int64_t step);

// Deletes what the next rolling checkpoint replaces, and returns the folder to save it in. A crash
// leaves a slot that is visibly incomplete. A checkpoint that is being read (read_lock.h) stays in
// the slot, beside the next one, until the slot is emptied again. Where directories cannot be
// renamed, it is a new folder in the slot, so that no other attempt shares it, and an
// incomplete save stays until a checkpoint of its step or a later one is committed in a slot.
// Symbolic links are left alone: one in a slot stays beside the next checkpoint, and a slot that is
// one is used only where the other one is, too, and never emptied.
absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage);

// A save that is about to begin.
struct ComingSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t needed_bytes = 0;
};

// Deletes checkpoints by a policy (retention.h). Manifests of permanent checkpoints are read once.
// One that cannot be read, for another reason than damage, stays, and is read again the next time.
// Symbolic links, directories that cannot be listed and what is quarantined are left alone and do
// not count. A checkpoint that is being read (read_lock.h) stays until the next time. Each
// checkpoint is uncommitted before its files are deleted, so that a crash halfway leaves none that
// looks complete. One thread at a time.
class Retention {
 public:
  // The storage must outlive it.
  Retention(Storage& storage, const RetentionOptions& options);

  // Deletes the permanent checkpoints that the policy does not keep, and remains of incomplete
  // saves that are older than the newest of them. Tries all, and returns the first error, also that
  // of a checkpoint which could not be read.
  absl::Status Apply(absl::Time now);

  // Where the storage lacks space for a save: deletes what ChooseToMakeRoom() names until there is
  // room, or nothing where all of that is too small. Returns the deleted directories.
  absl::StatusOr<std::vector<std::string>> MakeRoom(const ComingSave& coming, absl::Time now);

 private:
  // A checkpoint, as far as its manifest and the sizes of its files tell.
  struct Described {
    RetentionCandidate candidate;
    absl::Status unknown;  // an error other than damage: only the step is known
    bool intact = false;
    uint64_t bytes = 0;
  };

  Described Describe(const CheckpointInfo& checkpoint);
  Described DescribeOnce(const CheckpointInfo& checkpoint);
  // What MakeRoom() may delete, in this order, and the bytes of all of it.
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

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
