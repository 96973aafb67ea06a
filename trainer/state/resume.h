#ifndef TESSERA_TRAINER_STATE_RESUME_H_
#define TESSERA_TRAINER_STATE_RESUME_H_

// What a run continues from: a checkpoint of its own, a replica, or what `load` names.
//
// Everything here is collective over a group of ranks. An error on one rank alone is not sent to
// the others: the failing rank must leave the run, so that the others' waits end.

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/find_saved.h"

namespace tessera {

// Takes over from a checkpoint on this rank, or begins without one (nullopt). Returns the same
// status on all ranks where a checkpoint is damaged, as LoadTensors() does; see LoadOnThisRank in
// checkpoint_manager.h.
using UseSavedRun = std::function<absl::Status(std::optional<SavedRun>)>;

// Calls `use` with the checkpoint that the run continues from.
//
// With auto_resume and a folder `save`, that is the latest valid one there, permanent or rolling,
// as CheckpointManager::TryResume() finds it, with a note for each that it has skipped.
// FailedPrecondition where none is valid, unless resume_ignore_no_valid_checkpoint is set.
// ckpt_step, where `load` is empty or the same folder, chooses one of its steps instead, after
// which later ones are abandoned.
//
// Without one there, it is the checkpoint that FindToLoad() finds. If no load is named and `save`
// holds no checkpoint, it is nullopt, with a note; with exit_on_missing_checkpoint or ckpt_step,
// NotFound.
//
// `manager`: of `save`, see RunSaver.
//
// `replica` (see ResumesLatest()) is used instead of a checkpoint of its step or an earlier one in
// `save`; where it is damaged, the run continues as without it.
absl::Status ContinueFromSaved(const TrainConfig& config, const RankGroup& group,
                               ckpt::CheckpointManager& manager, const NoteSink& notes,
                               const UseSavedRun& use,
                               std::optional<SavedRun> replica = std::nullopt);

// Whether the run continues from the newest of its own states, so that a replica may be it.
bool ResumesLatest(const CheckpointConfig& config);

// That checkpoint, where nothing is to be tried beyond reading its manifest.
absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group, const NoteSink& notes);

// The settings for a run that continues from `saved`: those that concern a start from another
// folder (finetune, no_load_optim and so on) do not apply to a resume from the run's own folder.
TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RESUME_H_
