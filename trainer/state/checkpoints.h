#ifndef TESSERA_TRAINER_STATE_CHECKPOINTS_H_
#define TESSERA_TRAINER_STATE_CHECKPOINTS_H_

// The trainer's side of saving and loading: flags in, calls of the checkpoint library out.
//
// Everything here is collective over a group of ranks. An error on one rank alone is not sent to
// the others: the failing rank must leave the run, so that the others' waits end.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/manager/folder_lock.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// The ranks of a run, and how long to wait for them.
struct RankGroup {
  ckpt::ProcessGroup& ranks;
  absl::Duration deadline = absl::Minutes(10);
};

// Receives sentences for the user.
using NoteSink = std::function<void(const std::string&)>;

// A committed checkpoint, chosen and its manifest read; no tensor has been touched.
struct SavedRun {
  ckpt::Checkpoint checkpoint;
  std::optional<int64_t> older_step = {};  // of the checkpoint before it in the same folder
  // The run's own, from the folder `save`, rather than what it starts from.
  bool is_own = false;
  // A replica of the run's own state in the memory of its machines, which is in no folder.
  bool in_memory = false;
  // Where another framework's checkpoint is, and its format, which the storage presents; empty:
  // none. What its files do not tell is absent from the manifest.
  std::string foreign_name = {};
  std::string foreign_format = {};

  const ckpt::Manifest& manifest() const { return checkpoint.manifest(); }
  std::string Describe() const {
    return foreign_name.empty() ? checkpoint.storage().Describe(checkpoint.directory())
                                : foreign_name;
  }
};

// How a note about a checkpoint begins that a resume has skipped, because it is damaged.
inline constexpr char kSkippedNote[] = "WARNING: skipped ";

// NotFound: `load` names no checkpoint. The message tells what is there instead.
absl::Status NothingToLoad(const CheckpointConfig& config);

// Adds a workaround for a checkpoint that cannot be read: the one before it.
absl::Status WithOlderStep(const absl::Status& status, std::optional<int64_t> older_step);

// Whether the run saves: it has a folder to save to and has not been told to leave it alone.
bool Saves(const TrainConfig& config);

// Takes over from a checkpoint on this rank, or begins without one (nullopt). Returns the same
// status on all ranks where a checkpoint is damaged, as LoadTensors() does; see LoadOnThisRank in
// checkpoint/manager/resume.h.
using UseSavedRun = std::function<absl::Status(std::optional<SavedRun>)>;

// Calls `use` with the checkpoint that the run continues from.
//
// With auto_resume and a folder `save`, that is the latest valid one there, permanent or rolling:
// see ResumeFromLatest() for what is skipped, what ends the run, and what `use` may see before.
// Where one has been used, newer ones that are damaged or have diverged are quarantined, with a
// note for each, if the run Saves(); else they are left where they are. FailedPrecondition where
// none is valid, unless resume_ignore_no_valid_checkpoint is set. ckpt_step, where `load` is empty
// or the same folder, chooses one of its steps instead, after which later ones are abandoned.
//
// Without one there, the checkpoint that `load` and `ckpt_step` name: `load` itself where it is a
// checkpoint, under whatever name, or one of another framework, else the newest in it without
// ckpt_step. Directories that cannot be read are skipped, unless nothing is left or ckpt_step names
// one: then their error is returned.
//
// nullopt if no load is named and `save` holds no checkpoint, with a note, unless
// exit_on_missing_checkpoint or ckpt_step is set. NotFound where what is named is not there, with
// what is there instead; DataLoss for a damaged manifest. Rank 0 looks and reads, and sends the
// others what it found.
//
// `lock`: of `save`, on rank 0 of a run that saves; null otherwise.
//
// `replica` (see ResumesLatest()) is used instead of a checkpoint of its step or an earlier one in
// `save`; where it is damaged, the run continues as without it.
absl::Status ContinueFromSaved(const TrainConfig& config, const RankGroup& group,
                               ckpt::FolderLock* lock, const NoteSink& notes,
                               const UseSavedRun& use,
                               std::optional<SavedRun> replica = std::nullopt);

// Whether the run continues from the newest of its own states, so that a replica may be it.
bool ResumesLatest(const CheckpointConfig& config);

// That checkpoint, where nothing is to be tried beyond reading its manifest.
absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group, const NoteSink& notes);

// FailedPrecondition where the run would continue with something that the checkpoint does not have,
// because another program wrote it, and that no setting states: its step, or its position in the
// data. Names the flags that state it or do without it. Also where consumed_samples is another
// position than the saved one.
absl::Status CheckTellsProgress(const SavedRun& saved, const TrainConfig& config);

// The settings for a run that continues from `saved`: those that concern a start from another
// folder (finetune, no_load_optim and so on) do not apply to a resume from the run's own folder.
TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved);

// One sentence about what FindSavedRun() skips in `folder`: saves of steps after `step` that were
// started but not committed, as a sudden death leaves them, and directories of any step that cannot
// be read. Empty if nothing is skipped. For rank 0.
absl::StatusOr<std::string> DescribeSkipped(const std::string& folder, int64_t step,
                                            const std::string& s3_endpoint);

// Locks the folder, or the prefix of an object store, of a run that Saves(), until the lock is
// destroyed; rank 0 holds it, others return null. Waits a little for another holder to end.
// FailedPrecondition where nothing can be written, and while another process saves. InvalidArgument
// where it is itself a checkpoint.
absl::StatusOr<std::unique_ptr<ckpt::FolderLock>> LockSaveFolder(
    const TrainConfig& config, const RankGroup& group, const NoteSink& notes,
    absl::Duration wait = absl::Seconds(10));

// Whether checkpoints of a run that continues from `step` would mix with others in its folder:
// FailedPrecondition where checkpoints of later steps exist, or may exist in a directory that
// cannot be read, of another run or of a future that this run abandons. Not where the run continues
// from one of its own (`from_own`): ContinueFromSaved() takes the later ones out of the way.
absl::Status CheckLaterSteps(const TrainConfig& config, int64_t step, bool from_own,
                             const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_CHECKPOINTS_H_
