#ifndef TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
#define TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_

// All deletions in directories of steps. Each keeps these rules:
//
// - What was set aside stays, the manifest and every file that it names. Where such a manifest
//   cannot be read, nothing in its directory is deleted.
// - What is to be deleted is taken out of other writers' reach first, so that none of them can
//   commit what is being deleted. A directory is renamed, and looked at again: what was committed
//   just before gets its name back. Where directories cannot be renamed, the files to delete are
//   listed, a tombstone (fence.h) takes the manifest's place, and the files of that list alone are
//   deleted: the attempts that wrote them can no longer commit.

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// What there was of earlier saves in a directory that a save is about to fill.
enum class Leftovers {
  kNone,       // nothing, or it has been deleted
  kCommitted,  // a committed checkpoint, which stays as it is
  kKept,       // files of other attempts, or what was set aside: the directory cannot be renamed
};

// Makes room for a save: renames a directory without a manifest to "step-N.discarded-...", so that
// no other attempt can still commit in it, and then deletes it. Also deletes what an interrupted
// call left of others in the same folder.
absl::StatusOr<Leftovers> DiscardLeftovers(Storage& storage, std::string_view checkpoint_dir);

// Deletes the directories that were renamed in `folder` to be deleted and, interrupted, left there.
// One in which another attempt had just committed gets its name back.
absl::Status SettleDiscarded(Storage& storage, std::string_view folder);

// Deletes a directory, of a checkpoint or of an attempt that was not committed. The latter only
// where a checkpoint that takes its place is committed, or directories can be renamed. False where
// it stays: another attempt has committed meanwhile, or something in it was set aside and cannot be
// read. A crash halfway leaves no checkpoint that looks complete and is not. Precondition:
// dir.committed is OK.
absl::StatusOr<bool> RemoveStepDirectory(Storage& storage, const CheckpointInfo& dir);

// Deletes the files of other attempts beside a checkpoint that is committed, which fences them.
absl::Status DeleteOtherAttempts(Storage& storage, std::string_view checkpoint_dir,
                                 const Manifest& committed);

// Takes back a manifest that was committed with these bytes; OK where others are there by now.
absl::Status TakeBack(Storage& storage, std::string_view checkpoint_dir,
                      std::string_view manifest_bytes);

// Where directories cannot be renamed: gives the manifest the name "manifest.pb.<word>", or
// "manifest.pb.<word>-2" and so on where that is taken, which is returned as a path. Copies it, and
// replaces it by a tombstone: once the copy is there, the checkpoint is no longer committed
// (IsCommitted), and a call that was interrupted in between is completed by the next. Aborted, with
// nothing changed, if `expected` is not null and the manifest has other bytes.
absl::StatusOr<std::string> QuarantineManifest(Storage& storage, std::string_view checkpoint_dir,
                                               std::string_view word,
                                               const std::string* expected = nullptr);

// "x.damaged", or the first of "x.damaged-2", "x.damaged-3" ... that is not in `names`, a listing.
std::string FreeName(const std::vector<std::string>& names, std::string_view name,
                     std::string_view word);

// See CheckpointFolder::Prune(). `check` returns OK for a committed checkpoint that is intact, an
// error for which MayBeDamage() holds for one that is damaged, another error if it cannot tell.
absl::Status PruneStepDirectories(Storage& storage, std::string_view root, int keep,
                                  absl::FunctionRef<absl::Status(const CheckpointInfo&)> check);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_REMOVAL_H_
