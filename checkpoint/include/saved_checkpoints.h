#ifndef TESSERA_CHECKPOINT_INCLUDE_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_INCLUDE_SAVED_CHECKPOINTS_H_

// The checkpoints that a job has saved in a folder, the root of a storage, for programs that look
// there without a CheckpointManager.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_info.h"
#include "storage/storage.h"

namespace tessera::ckpt {

class Manifest;  // checkpoint/include/manifest.h

// Returns the committed checkpoints, permanent and rolling, in the order in which a job tries to
// resume from them: newest first, and of one step the permanent one first. Empty if the folder does
// not exist. Directories that cannot be listed are left out, and added to `unreadable` (may be
// null).
absl::StatusOr<std::vector<CheckpointInfo>> ListForResume(
    Storage& storage, std::vector<CheckpointInfo>* unreadable = nullptr);

// Returns FailedPrecondition if the folder holds checkpoints, permanent or rolling, of later steps
// than `step`, at which a job begins: its checkpoints would mix with them, and a restart would
// resume from another past than its own. Names them, then says `advice`, such as "save to another
// folder". Also if a directory of a later step cannot be listed and may be a checkpoint. Otherwise
// the errors of listing the folder.
absl::Status CheckLaterSteps(Storage& storage, int64_t step, std::string_view advice);

// Returns whether the saved state was finite and its loss plausible, as far as is known.
bool IsHealthy(const Manifest& manifest);

// Returns NotFound: "no such checkpoint in", and the existing steps.
absl::Status NoSuchCheckpoint(const Storage& storage, std::vector<CheckpointInfo> saved);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_SAVED_CHECKPOINTS_H_
