#ifndef TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_

// Operations on the checkpoints that a run has saved in a folder, the root of a storage: permanent
// ones and rolling ones. One process of the run calls them, and holds the folder's lock if others
// may save. CheckpointManager (checkpoint_manager.h) does all of this for a job. retention.h
// deletes what a run does not keep; resume.h chooses where it resumes.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Reads the manifest of a checkpoint, and checks that the files exist, have their sizes, and begin
// with their headers. Does not read contents, whose checksums a load checks. DataLoss names the
// damage, which is read again first, since bytes that were damaged on their way from a remote
// storage are intact the next time. NotFound if no checkpoint is committed.
absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory);

// The words in the names of quarantined checkpoints.
inline constexpr std::string_view kDamaged = "damaged", kDiverged = "diverged";

// Returns a sentence that says why a checkpoint that is not IsHealthy() is skipped.
SkippedCheckpoint Diverged(const CheckpointInfo& checkpoint, const Manifest& manifest);

// Returns a message about the contents of `directory`, for a sentence that has already named the
// directory.
std::string WithoutDirectory(const Storage& storage, std::string_view directory,
                             absl::string_view message);

// Quarantines, as "abandoned", the checkpoints of later steps than `step`, for a run that continues
// from an earlier step on request. Returns the new directories. Does nothing, and returns the
// error, if a directory of a later step cannot be listed.
absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, int64_t step);

// Rolling checkpoints are frequent. Only the last two are kept, beside the permanent checkpoints of
// the run. Each of two slots is a folder of its own that holds one ordinary checkpoint:
//
//   step-00000200/            permanent
//   rolling-0/step-00000250/
//   rolling-1/step-00000225/  replaced next
//
// If directories cannot be renamed, as in object stores, each attempt at a save gets a folder of
// its own in the slot, so that the remains of another attempt can stay until later:
//
//   rolling-0/1a2b3c4d/step-00000250/
//
// The slot that is replaced is emptied before the new checkpoint is written. The other one stays
// complete meanwhile. The slot of the newest good checkpoint of the run is not replaced: if the
// newer rolling one was damaged, it is.

inline constexpr std::array<std::string_view, 2> kRollingSlots = {"rolling-0", "rolling-1"};

// The steps of the committed checkpoints in the slots; nullopt: the slot has none.
using RollingSteps = std::array<std::optional<int64_t>, kRollingSlots.size()>;

// Returns the index of the slot for the next checkpoint: one without a checkpoint, otherwise the
// older one.
inline int ChooseRollingSlot(const RollingSteps& steps) {
  return steps[1] < steps[0] ? 1 : 0;  // nullopt is less than any step
}

// Returns whether this may be the folder of an attempt: "1a2b3c4d".
bool IsRollingAttempt(std::string_view name);

// Returns whether the directory of a rolling checkpoint, or its slot, is a symbolic link.
bool IsLinked(Storage& storage, std::string_view directory);

// Deletes the checkpoint that the next rolling one replaces, and returns the folder in which to
// save. A crash leaves a slot that is visibly incomplete. A checkpoint that is being read
// (read_lock.h) stays in the slot, beside the next one, until the slot is emptied again. If
// directories cannot be renamed, the folder is a new one in the slot, so that no other attempt
// shares it. An incomplete save then stays until a checkpoint of its step or a later one is
// committed in a slot. Symbolic links are left alone: one in a slot stays beside the next
// checkpoint; a slot that is a link is used only if the other one is a link, too, and never
// emptied.
//
// `known_good` is the directory of a healthy checkpoint that this process has committed or loaded.
// If it is the one that stays, or a permanent one of its step or a later one, nothing is read.
// Otherwise reads the manifest of the checkpoint that stays, and the sizes and headers of its
// files, one after the other. A rolling checkpoint that cannot be read, for another reason than
// damage, is taken as good.
//
// A checkpoint that cannot be deleted stays beside the next one, too, and `undeleted`, unless it is
// null, receives the first such error.
absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage, std::string_view known_good = "",
                                             absl::Status* undeleted = nullptr);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVED_CHECKPOINTS_H_
