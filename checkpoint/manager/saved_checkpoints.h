#ifndef TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_

// Operations on the checkpoints that a run has saved in a folder, the root of a storage: permanent
// ones and rolling ones (retention.h). One process of the run calls them, and holds the folder's
// lock if others may save. CheckpointManager (checkpoint_manager.h) does all of this for a job;
// resume.h chooses the checkpoint from which a run resumes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

// Reads the manifest of a checkpoint, and checks that the files exist, have their sizes, and begin
// with their headers. Does not read contents, whose checksums a load checks. DataLoss names the
// damage, which is read again first, since bytes that were damaged on their way from a remote
// storage are intact the next time. NotFound if no checkpoint is committed.
absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory);

// Returns a message about the contents of `directory`, for a sentence that has already named the
// directory.
std::string WithoutDirectory(const Storage& storage, std::string_view directory,
                             absl::string_view message);

// Quarantines, as "abandoned", the checkpoints of later steps than `step`, for a run that continues
// from an earlier step on request. Returns the new directories. Does nothing, and returns the
// error, if a directory of a later step cannot be listed.
absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, int64_t step);

// Deletes the checkpoint that the next rolling one replaces, and returns the folder in which to
// save. A crash leaves a slot that is visibly incomplete. A checkpoint that is being read
// (read_lock.h) stays in the slot, beside the next one, until the slot is emptied again. If
// directories cannot be renamed, the folder is a new one in the slot, so that no other attempt
// shares it, and an incomplete save stays until a checkpoint of its step or a later one is
// committed in a slot. Symbolic links are left alone: one in a slot stays beside the next
// checkpoint; a slot that is a link is used only if the other one is a link, too, and never
// emptied.
absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage);

// A save that is about to begin.
struct ComingSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t needed_bytes = 0;
};

// Deletes checkpoints by a policy (retention.h). Manifests of permanent checkpoints are read once.
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

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
