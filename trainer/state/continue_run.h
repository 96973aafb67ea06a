#ifndef TESSERA_TRAINER_STATE_CONTINUE_RUN_H_
#define TESSERA_TRAINER_STATE_CONTINUE_RUN_H_

// The checkpoint from which a run continues: one of its own, a replica, or the one that `load`
// names.
//
// Everything here is collective over a group of ranks. An error on one rank alone is not sent to
// the others: the failing rank must leave the run, so that the others' waits end.

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/find_saved.h"

namespace tessera {

// A function that takes over from a checkpoint on this rank, or begins without one (nullopt). If a
// checkpoint is damaged, it returns the same status on all ranks, as LoadTensors() does; see
// LoadOnThisRank in checkpoint_manager.h.
using UseSavedRun = std::function<absl::Status(std::optional<SavedRun>)>;

// Calls `use` with the checkpoint from which the run continues.
//
// With auto_resume and a folder `save`, the checkpoint is the latest valid one there, permanent or
// rolling, as CheckpointManager::TryResume() finds it, with a note for each skipped one.
// FailedPrecondition if none is valid, unless resume_ignore_no_valid_checkpoint is set. ckpt_step,
// if `load` is empty or the same folder, chooses one of its steps instead, after which later ones
// are abandoned.
//
// Without a checkpoint there, it is the one that FindToLoad() finds. If no load is named and `save`
// holds no checkpoint, it is nullopt, with a note, or NotFound with exit_on_missing_checkpoint or
// ckpt_step.
//
// `manager` is the manager of `save`, see RunSaver.
//
// `replica` (see ResumesLatest()) is used instead of a checkpoint of its step or an earlier one in
// `save`; if it is damaged, the run continues as without it.
absl::Status ContinueFromSaved(const TrainConfig& config, const RankGroup& group,
                               ckpt::CheckpointManager& manager, const NoteSink& notes,
                               const UseSavedRun& use,
                               std::optional<SavedRun> replica = std::nullopt);

// Returns whether the run continues from the newest of its own states, which may be a replica.
bool ResumesLatest(const CheckpointConfig& config);

// Finds the checkpoint of ContinueFromSaved(), without trying more than to read its manifest.
absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group, const NoteSink& notes);

// Returns the settings for a run that continues from `saved`. Settings that concern a start from
// another folder (finetune, no_load_optim and so on) do not apply to a resume from the run's own
// folder; without saved optimizer state, no_load_optim does, and no_save_optim implies it. So does
// another framework's optimizer without state.
TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_CONTINUE_RUN_H_
