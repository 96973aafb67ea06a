#ifndef TESSERA_CHECKPOINT_INTERNAL_SAVED_CHECKPOINTS_H_
#define TESSERA_CHECKPOINT_INTERNAL_SAVED_CHECKPOINTS_H_

// The checkpoints that a job has saved in a folder, the root of a storage, for programs that look
// there without a CheckpointManager.
//
// Implemented in checkpoint/manager/saved_checkpoints.cc.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Returns the committed checkpoints, permanent and rolling, in the order in which a job tries to
// resume from them: newest first, and of one step the permanent one first. None if the folder does
// not exist. Directories that cannot be listed are added to `unreadable` (may be null) instead.
absl::StatusOr<std::vector<CheckpointInfo>> ListForResume(
    Storage& storage, std::vector<CheckpointInfo>* unreadable = nullptr);

// Checks that the folder holds no checkpoints, permanent or rolling, of later steps than `step`, at
// which a job begins. The job's own would mix with them, and a restart would resume from another
// past. FailedPrecondition names the later checkpoints, or a directory of a later step that cannot
// be listed and may be one, and then says `advice`, such as "save to another folder". Other errors
// come from listing the folder.
absl::Status CheckLaterSteps(Storage& storage, int64_t step, std::string_view advice);

// The entry of TrainerState.extra that identifies the data of StateHealth.validation_loss. Losses
// of other data are not compared.
inline constexpr char kValidationData[] = "validation_data";

// Returns whether the saved state was finite and its loss plausible, as far as is known.
bool IsHealthy(const Manifest& manifest);

// Chooses the newest checkpoint that IsHealthy(), for a program that has been given the folder
// alone; a note names each newer one. If none is healthy, the choice is the newest, and a note says
// so. A checkpoint whose manifest cannot be read is chosen as a healthy one: the program's own
// attempt has the error. Reads manifests. Precondition: `newest_first` is not empty.
FoundCheckpoint ChooseToRead(Storage& storage, std::span<const CheckpointInfo> newest_first);

// Returns NotFound: "no such checkpoint in", and the existing steps.
absl::Status NoSuchCheckpoint(const Storage& storage, std::vector<CheckpointInfo> saved);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_SAVED_CHECKPOINTS_H_
