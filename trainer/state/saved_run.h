#ifndef TESSERA_TRAINER_STATE_SAVED_RUN_H_
#define TESSERA_TRAINER_STATE_SAVED_RUN_H_

// The checkpoint from which a run continues: finding it, and loading it or an older one.
//
// The functions that take a group are collective over its ranks. An error on one rank alone is not
// sent to the others: the failing rank must leave the run, so that the others' waits end.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "storage/storage.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"

namespace tessera {

// A newer checkpoint than the one that a run resumes from: it is damaged, or had diverged.
struct SkippedRun {
  std::string word;      // as SkippedCheckpoint::word: "damaged" or "diverged"
  std::string sentence;  // names it, and the reason
};

// A committed checkpoint that was chosen. Only its manifest has been read.
struct SavedRun {
  ckpt::Checkpoint checkpoint;
  std::optional<int64_t> older_step = {};  // of the checkpoint before it in the same folder
  // Whether the checkpoint is the run's own, from the folder `save`.
  bool is_own = false;
  // Whether the checkpoint is a replica of the run's own state in the memory of its machines.
  bool in_memory = false;
  // The name of another framework's checkpoint, which the storage presents, and its format; empty:
  // a checkpoint of this library. Facts that its files do not record are absent from the manifest.
  std::string foreign_name = {};
  std::string foreign_format = {};
  // The newer checkpoints in the folder, which FindNamed() skipped. Rank 0 alone has them.
  std::vector<SkippedRun> skipped = {};

  const ckpt::Manifest& manifest() const { return checkpoint.manifest(); }
  std::string Describe() const {
    return foreign_name.empty() ? checkpoint.storage().Describe(checkpoint.directory())
                                : foreign_name;
  }
};

// Returns whether `load` is the folder to which the run saves.
bool LoadsItsOwn(const CheckpointConfig& config);

// Returns whether the run continues from the newest of its own states, which may be a replica.
bool ResumesLatest(const CheckpointConfig& config);

// A function that loads a checkpoint on this rank, or begins without one (nullopt). If a checkpoint
// is damaged, it returns the same status on all ranks, as LoadTensors() does; see LoadOnThisRank in
// checkpoint_manager.h.
using LoadRun = std::function<absl::Status(std::optional<SavedRun>)>;

// Finds the checkpoint from which the run continues, and calls `load` with it. Returns, on rank 0,
// the newer checkpoints that were skipped; `notes` receives a sentence about each.
//
// With auto_resume and a folder `save`, the checkpoint is the latest valid one there, permanent or
// rolling, as CheckpointManager::TryResume() finds it, with a note for each skipped one.
// FailedPrecondition if none is valid, unless resume_ignore_no_valid_checkpoint is set. ckpt_step,
// if `load` is empty or the same folder, chooses one of its steps instead, after which later ones
// are abandoned.
//
// Without a checkpoint there, it is the one that FindNamed() finds. If no load is named and `save`
// holds no checkpoint, it is nullopt, with a note, or NotFound with exit_on_missing_checkpoint or
// ckpt_step.
//
// `manager` is the manager of `save`, see RunSaver.
//
// `replica` (see ResumesLatest()) is used instead of a checkpoint of its step or an earlier one in
// `save`; if it is damaged, the run continues as without it.
absl::StatusOr<std::vector<SkippedRun>> LoadSavedRun(
    const TrainConfig& config, const RankGroup& group, ckpt::CheckpointManager& manager,
    const NoteSink& notes, const LoadRun& load, std::optional<SavedRun> replica = std::nullopt);

// Finds the checkpoint that LoadSavedRun() would try first. Changes nothing, and reads only
// manifests.
absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group, const NoteSink& notes);

// Finds the checkpoint that `load` and `ckpt_step` name: `load` itself if it is a checkpoint, under
// whatever name, or one of another framework; otherwise the checkpoint of ckpt_step in the folder,
// or, without ckpt_step, the one that ChooseToRead() finds. Directories that cannot be read are
// skipped; their error is returned if nothing is left or ckpt_step names one. NotFound, with what
// is there instead, if there is no such checkpoint; DataLoss for a damaged manifest. Rank 0 looks
// and reads, and sends the result to the others; its error reaches them when it leaves.
absl::StatusOr<SavedRun> FindNamed(const TrainConfig& config, const RankGroup& group,
                                   const NoteSink& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVED_RUN_H_
