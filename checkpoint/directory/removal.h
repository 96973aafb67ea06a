#ifndef TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
#define TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manifest.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The remains of earlier saves in a directory that a save is about to fill.
enum class Leftovers {
  kNone,       // nothing, or it has been deleted
  kCommitted,  // a committed checkpoint, which stays as it is
  kKept,       // files of other attempts, or quarantined ones: the directory cannot be renamed
};

// Quarantines and deletes directories of steps, in the way that a storage allows. All deletions in
// such directories use this class, which keeps two rules:
//
// - Quarantined checkpoints stay, the manifest and every file that it names. If such a manifest
//   cannot be read, nothing in its directory is deleted.
// - Data to delete is first taken out of other writers' reach, so that none of them can commit it.
//   The directory is renamed, or gets a tombstone (directory.h) in a storage that cannot rename it.
//   FORMAT.md, "Commit protocol", has the order of the steps.
class Removal {
 public:
  // Returns the implementation for a storage, which must outlive it.
  static std::unique_ptr<Removal> In(Storage& storage);
  virtual ~Removal() = default;

  // Makes room for a save. In a file system, renames a directory without a manifest to
  // "step-N.discarded-..." and deletes it, with the remains of other such directories in the same
  // folder. Those that cannot be deleted stay.
  virtual absl::StatusOr<Leftovers> DiscardLeftovers(std::string_view checkpoint_dir) = 0;

  // Deletes the directory of a checkpoint, or of an attempt that was not committed. Without
  // frees_names(), delete an attempt only if a checkpoint that takes its place is committed.
  // Returns false if the directory stays, because another attempt has committed meanwhile or
  // something quarantined in it cannot be read. A crash halfway leaves no checkpoint that looks
  // complete and is not. Precondition: dir.readable is OK.
  //
  // `judged` is the ManifestIdentity() of a committed checkpoint, read before its deletion was
  // decided. A checkpoint that another process has committed in its place since then stays. Without
  // `judged`, any checkpoint that is there is deleted. A store that ignores conditions of deletions
  // leaves a gap of one request.
  virtual absl::StatusOr<bool> Delete(const CheckpointInfo& dir,
                                      const std::optional<std::string>& judged = std::nullopt) = 0;

  // Fences other attempts beside a committed checkpoint, and deletes their files unless the
  // checkpoint is being read. `names` are the files that were in the directory immediately before
  // the commit. Files of an attempt that began later stay, because it may replace the checkpoint.
  virtual absl::Status DeleteOtherAttempts(std::string_view checkpoint_dir,
                                           const Manifest& committed,
                                           const std::vector<std::string>& names) = 0;

  // Takes back a manifest that was committed with these bytes. Returns true if it is not committed
  // any more: it was taken back, or another manifest has replaced it. Returns false if it is gone,
  // perhaps with a directory that gets its name back.
  virtual absl::StatusOr<bool> TakeBack(std::string_view checkpoint_dir,
                                        std::string_view manifest_bytes) = 0;

  // Deletes the files of an attempt that is not committed, unless a quarantined manifest has them.
  virtual absl::Status DeleteAttempt(std::string_view checkpoint_dir, const Manifest& attempt) = 0;

  // Quarantines a checkpoint: readers no longer find it, but all of it is still there. In a file
  // system, renames "step-00000500" to "step-00000500.damaged" if `word` is "damaged", or to
  // "step-00000500.damaged-2" and so on if that exists. In an object store, renames only the
  // manifest, to "manifest.pb.damaged" and so on. Returns the new path.
  //
  // With `expected`, the bytes of a manifest, Aborted if another checkpoint is there by now.
  virtual absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir,
                                                 std::string_view word,
                                                 const std::string* expected = nullptr) = 0;

  // Returns whether no files of other attempts can appear under the name of a deleted directory.
  virtual bool frees_names() const = 0;
};

// Calls `call` with the lock of a checkpoint (internal/read_lock.h), unless the checkpoint is being
// read.
void UnlessRead(const Storage& storage, std::string_view dir, const std::function<void()>& call);

// Returns what removal.Delete() does; false if the checkpoint is being read.
absl::StatusOr<bool> RemoveUnlessRead(Storage& storage, Removal& removal, const CheckpointInfo& dir,
                                      const std::optional<std::string>& judged = std::nullopt);

// Deletes the directories in `folder` that interrupted deletions have renamed and left. A directory
// in which another attempt had just committed gets its name back. If the step has been saved again
// since, it is quarantined as "step-N.abandoned". A directory whose lock another process has stays:
// it is being deleted. Tries all, and returns the first error.
absl::Status SettleDiscarded(Storage& storage, std::string_view folder);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
