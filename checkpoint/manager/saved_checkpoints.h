#ifndef TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_

// What a run has saved under one root: permanent checkpoints and rolling ones (rolling.h), and what
// is done with them. Called by one process of the run, which holds the folder's lock where others
// may save.
//
//   absl::StatusOr<std::optional<ResumePoint>> point =
//       TakeNewestIntact(*storage, "", Damaged::kSetAside, &passed_over);
//   ...load *point; after DataLoss, SetAside() it and take the newest again...
//
//   Retention retention(*storage, "", {.newest = 3, .best = 1});
//   SaveOptions options;
//   options.choose_root = [&](const PlannedSave&) { return EmptyRollingSlot(*storage, ""); };
//   ...
//   retention.Apply(absl::Now());  // after a permanent checkpoint has been committed

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct SavedCheckpoint {
  int64_t step = 0;
  std::string directory;  // inside the storage
  bool rolling = false;

  bool operator==(const SavedCheckpoint&) const = default;
};

// Committed checkpoints under `root`, permanent and rolling, in the order in which a run tries to
// resume from them: newest first, and of one step the permanent one first. None if the root is not
// there. Directories that cannot be listed are left out.
absl::StatusOr<std::vector<SavedCheckpoint>> ListForResume(Storage& storage, std::string_view root);

// The manifest of a checkpoint whose files are there, have the sizes that it states, and begin with
// the headers that belong to it. Contents are not read: a load checks their checksums. DataLoss
// names the damage; NotFound where no checkpoint is committed.
absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory);

struct ResumePoint {
  SavedCheckpoint checkpoint;
  Manifest manifest;
};

// A checkpoint that was passed over.
struct SetAsideCheckpoint {
  std::string directory;
  std::string moved_to;  // empty: left as it is
  absl::Status reason;
};

enum class Damaged {
  kSetAside,  // renamed, see SetAside()
  kSkip,      // left as it is
};

// The first checkpoint of ListForResume() that is intact; nullopt if there is none. Damaged ones on
// the way are added to `passed_over`. Other errors than damage are returned: a storage that does
// not answer is no reason to pass over a checkpoint.
absl::StatusOr<std::optional<ResumePoint>> TakeNewestIntact(
    Storage& storage, std::string_view root, Damaged damaged,
    std::vector<SetAsideCheckpoint>* passed_over);

// Renames "step-00000500" to "step-00000500.damaged", where `word` is "damaged", or to
// "step-00000500.damaged-2" and so on where that exists: from then on it is no checkpoint to any
// reader, but all of it is still there. Returns the new directory. A storage that cannot rename
// directories keeps it in place, with its manifest renamed.
absl::StatusOr<std::string> SetAside(Storage& storage, std::string_view directory,
                                     std::string_view word);

// Sets aside, as "abandoned", the checkpoints of later steps than `step`: those of a future that a
// run abandons when it continues from an earlier step on request. Returns the new directories.
absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, std::string_view root,
                                                      int64_t step);

// Deletes what the next rolling checkpoint replaces, and returns the root to save it under. The
// slot's manifest goes first and durably: a crash leaves a slot that is visibly incomplete. A
// checkpoint that is being read (read_lock.h) stays in the slot, beside the next one, until the
// slot is emptied again.
absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage, std::string_view root);

// For a save that lacks space: deletes rolling checkpoints, the oldest first, until `needed_bytes`
// are free. Keeps a rolling one unless an intact checkpoint of a finite state remains beside it;
// deletes none where all of them together are too small, or the storage has no limit. Returns the
// deleted directories.
absl::StatusOr<std::vector<std::string>> DropRollingForSpace(Storage& storage,
                                                             std::string_view root,
                                                             uint64_t needed_bytes);

// Deletes permanent checkpoints by a policy (retention.h). Manifests of checkpoints are read once.
// Symbolic links, directories that cannot be listed, rolling checkpoints and what was set aside are
// left alone and do not count. A checkpoint that is being read (read_lock.h) stays until the next
// time. One thread at a time.
class Retention {
 public:
  // The storage must outlive it.
  Retention(Storage& storage, std::string_view root, const RetentionOptions& options);

  // Deletes what the policy does not keep, and remains of incomplete saves that are older than the
  // newest checkpoint. Each checkpoint is uncommitted first, so that a crash halfway leaves none
  // that looks complete. Tries all, and returns the first error.
  absl::Status Apply(absl::Time now);

  // The same before a save of `step` that lacks space: as if its checkpoint were there already, but
  // not known to be good.
  absl::Status MakeRoomFor(int64_t step, absl::Time now);

 private:
  absl::Status Delete(std::optional<int64_t> coming_step, absl::Time now);
  RetentionCandidate Describe(const SavedCheckpoint& checkpoint);

  Storage& storage_;
  const std::string root_;
  const RetentionOptions options_;
  std::map<std::string, RetentionCandidate> described_;  // by directory
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
