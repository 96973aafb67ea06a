#ifndef TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
#define TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manifest.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// What earlier saves have left in a directory that a save is about to fill.
enum class Leftovers {
  kNone,       // nothing, or it has been deleted
  kCommitted,  // a committed checkpoint, which stays as it is
  kKept,       // files of other attempts, or quarantined ones: the directory cannot be renamed
};

// Quarantines and deletes directories of steps, in the way that a storage allows. Every deletion in
// such a directory is one of these, and keeps two rules:
//
// - What is quarantined stays, the manifest and every file that it names. If such a manifest cannot
//   be read, nothing in its directory is deleted.
// - What is to be deleted is taken out of other writers' reach first, so that none of them can
//   commit what is being deleted. A file system renames the directory and looks at it again: a
//   checkpoint that was committed just before gets its name back. An object store has no
//   directories to rename. There, the files to delete are listed, a tombstone (fence.h) replaces
//   the manifest, and only the listed files are deleted: the attempts that wrote them can no longer
//   commit.
class Removal {
 public:
  // The way of a storage, which must outlive it.
  static std::unique_ptr<Removal> In(Storage& storage);
  virtual ~Removal() = default;

  // Makes room for a save. A file system renames a directory without a manifest to
  // "step-N.discarded-..." and deletes it, with what an interrupted call left of others in the same
  // folder.
  virtual absl::StatusOr<Leftovers> DiscardLeftovers(std::string_view checkpoint_dir) = 0;

  // Deletes the directory of a checkpoint, or of an attempt that was not committed. Without
  // frees_names(), delete an attempt only if a checkpoint that takes its place is committed.
  // Returns false if the directory stays, because another attempt has committed meanwhile or
  // something quarantined in it cannot be read. A crash halfway leaves no checkpoint that looks
  // complete and is not. Precondition: dir.committed is OK.
  virtual absl::StatusOr<bool> Delete(const CheckpointInfo& dir) = 0;

  // Deletes the files of other attempts beside a committed checkpoint, which fences them.
  virtual absl::Status DeleteOtherAttempts(std::string_view checkpoint_dir,
                                           const Manifest& committed) = 0;

  // Takes back a manifest that was committed with these bytes; OK if others are there by now.
  virtual absl::Status TakeBack(std::string_view checkpoint_dir,
                                std::string_view manifest_bytes) = 0;

  // Quarantines a checkpoint: readers no longer find it, but all of it is still there. A file
  // system renames "step-00000500" to "step-00000500.damaged" if `word` is "damaged", or to
  // "step-00000500.damaged-2" and so on if that exists. An object store renames only the manifest,
  // to "manifest.pb.damaged" and so on. Returns the new path.
  //
  // With `expected`, the bytes of a manifest, Aborted if another checkpoint is there by now.
  virtual absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir,
                                                 std::string_view word,
                                                 const std::string* expected = nullptr) = 0;

  // Whether nothing of other attempts appears under the name of a directory that was deleted.
  virtual bool frees_names() const = 0;
};

// Deletes the directories in `folder` that were renamed to be deleted and, interrupted, left there.
// One in which another attempt had just committed gets its name back.
absl::Status SettleDiscarded(Storage& storage, std::string_view folder);

// See CheckpointFolder::Prune(). `check` returns OK for a committed checkpoint that is intact, an
// error for which MayBeDamage() holds for one that is damaged, another error if it cannot tell.
absl::Status PruneStepDirectories(Storage& storage, std::string_view root, int keep,
                                  absl::FunctionRef<absl::Status(const CheckpointInfo&)> check);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
