#ifndef TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_

// The options and results of a CheckpointManager (checkpoint_manager.h), which decides when a job
// saves, which checkpoints it keeps, and where it resumes.
//
// Implemented in checkpoint/manager/: save_schedule.cc, retention.cc and resume.cc.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"

namespace tessera::ckpt {

// ---- When a job saves, and when it ends.

struct SaveScheduleOptions {
  // Whether the job saves. If not, nothing is locked or renamed, and only the end of the run is
  // decided.
  bool saves = true;

  // Permanent checkpoints. Zero: not for this reason.
  int64_t interval_steps = 0;
  absl::Duration interval = absl::ZeroDuration();  // since the last permanent one
  bool continuous = false;                         // the next one begins when the last one is done

  // Rolling checkpoints: frequent checkpoints. Only the last two are kept. If a permanent one is
  // due at the same step, only the permanent one is saved. 0: no rolling checkpoints.
  int64_t rolling_interval_steps = 0;

  // Ends of the run. Each end saves a permanent checkpoint.
  int64_t last_step = 0;            // 0: none
  bool saves_last_step = true;      // false: it is saved like any other step
  int64_t exit_interval_steps = 0;  // at the first step that is a multiple of this; 0: never
  absl::Duration exit_after = absl::InfiniteDuration();
  bool saves_at_signals = true;  // false: a signal ends the run without a checkpoint
};

// The limits at which a job ends because it cannot save. A save in the foreground that fails is not
// counted: its caller has the error.
struct FailedSavesOptions {
  int64_t max_failed_saves = 3;  // in a row; 0: any number
  absl::Duration max_without_checkpoint = absl::InfiniteDuration();
};

// The state of a rank after an optimizer step.
struct StepState {
  int64_t step = 0;           // completed; the same on every rank
  int stop_signal = 0;        // SIGINT; any other signal is treated as SIGTERM; 0: none
  bool program_ends = false;  // for a reason of its own; saves before
  // Whether the step changed the state, and its loss is plausible. Checkpoints that are due wait
  // for a step that is healthy on every rank, so that retention and rolling slots keep good ones.
  // Checkpoints at the end of the run or requested by a stop file do not wait, but then say that
  // the run had diverged (SaveRequest::healthy), so that no restart takes them.
  bool healthy = true;
};

enum class SaveKind { kNone, kRolling, kPermanent };

enum class EndReason {
  kNone,
  kLastStep,
  kSignal,
  kProgram,
  kStopFile,
  kExitDuration,
  kExitInterval
};

// The decision of all ranks after a step.
struct SaveDecision {
  SaveKind save = SaveKind::kNone;
  EndReason end = EndReason::kNone;
  int stop_signal = 0;           // to any rank, even if `end` has another reason; SIGINT if both
  bool program_ends = false;     // on any rank
  bool saves_unhealthy = false;  // `save` is of a step that is not healthy on all ranks

  bool operator==(const SaveDecision&) const = default;
};

// This rank's state, and what is saved beside it.
struct StateToSave {
  const StateDict* state;
  const Metadata* metadata;
};

// Describes this rank's state at a step that is saved. The memory of the result must stay valid as
// long as that of TrySave()'s arguments. Returns the same status on all ranks, as LoadOnThisRank
// does. If it throws on any rank, the save fails on every rank: of a save in the background, the
// others learn it by Poll().
using GiveStateToSave = std::function<absl::StatusOr<StateToSave>()>;

// ---- Which checkpoints it keeps.

// The permanent checkpoints to keep. A checkpoint is kept if any field keeps it. Zero keeps none;
// if all are zero, everything is kept.
struct RetentionOptions {
  // The number of newest checkpoints. Damaged ones do not count, except of those that the job has
  // saved itself, of whose files it reads nothing again. One of them stays while fewer intact ones
  // than this are newer, and the disk has room.
  int64_t newest = 0;
  int64_t every_steps = 0;                       // checkpoints whose step is a multiple of this
  int64_t best = 0;                              // the number with the lowest validation losses
  absl::Duration within = absl::ZeroDuration();  // checkpoints that are not older than this
  // Whether the good checkpoint before the newest one stays, too, until a later step than that of
  // the newest is healthy (StepState): the first weights of a divergence have the loss of a good
  // step, and the next step shows them. What is superfluous goes when the next save begins.
  bool awaits_healthy_step = false;

  bool deletes() const {
    return newest > 0 || every_steps > 0 || best > 0 || within > absl::ZeroDuration();
  }
};

// ---- Where it resumes.

struct ResumeOptions {
  // Step of the checkpoint from which to continue, instead of the latest valid one. An error if it
  // is missing or damaged. Once it is loaded, checkpoints of later steps are quarantined as
  // "abandoned".
  std::optional<int64_t> step = {};
  // Whether to begin without a checkpoint if there have been some but none is valid.
  bool ignore_no_valid = false;
};

// Loads a checkpoint on this rank. Collective; returns the same status on all ranks, as
// Checkpoint::Load() does. A rank that fails on its own first agrees with the others
// (AgreeOnStatus()), or leaves the group, so that the others' waits end; one on which this throws
// abandons the group. If all ranks return the same error, and it is damage that Checkpoint::Load()
// has found, TryResume() tries the next checkpoint. Any other error ends TryResume() without
// another call of the group.
using LoadOnThisRank = std::function<absl::Status(const Checkpoint&)>;

// The reason why TryResume() found no checkpoint. Its error carries it, and ProblemOf() reads it.
enum class ResumeProblem {
  kNone,        // the error is of another kind
  kNoSuchStep,  // NotFound: no checkpoint of ResumeOptions::step; lists the steps that exist
  kNoneValid,   // FailedPrecondition: checkpoints are there, or have been, and none is valid
};
ResumeProblem ProblemOf(const absl::Status& status);

// A checkpoint that was newer than the one resumed from, and the reason why it was not taken.
struct SkippedCheckpoint {
  std::string directory;  // its name before
  std::string moved_to;   // empty: left as it is
  // The word in the new name: "damaged", or "diverged" if the manifest says that the state is not
  // finite or its loss not plausible.
  std::string word;
  absl::Status reason;
};

struct ResumeResult {
  // The checkpoint that every rank has loaded, which retention may delete from then on; nullopt:
  // begin without a checkpoint.
  std::optional<Checkpoint> checkpoint;
  // On rank 0, empty elsewhere.
  std::vector<SkippedCheckpoint> skipped;  // newest first
  std::vector<std::string> abandoned;      // the new names of later checkpoints than options.step
};

// Returns "skipped /runs/a/step-00000500: why; it is now called step-00000500.damaged".
std::string Describe(const Storage& storage, const SkippedCheckpoint& skipped);

// ---- All options of a job.

struct CheckpointManagerOptions {
  // The ranks of the job, the timeout, the layout of the files, before_commit.
  SaveOptions save = {};

  // If set, saves are in the background. `background.save.group` must be a group of the same ranks
  // as save.group that nothing else uses.
  std::optional<AsyncSaveOptions> background = {};

  // Whether saves in the background go through a staging folder of the rank's machine
  // (StagingFolderOf()), from which files are uploaded to a slow or remote folder. The memory of
  // their copies is then free early. Only for a folder that is opened by its name.
  //
  // A checkpoint still exists only once all of it is in the remote folder. A job that is started
  // again reads the files that are staged and intact. The staging folder holds the newest
  // checkpoint and the one that is being saved; the job deletes it after its last step. Files for
  // which it has no room, or that would take more than half of the available memory, are written to
  // the remote folder directly.
  bool async_upload = false;
  // The folder in which the staging folder is made. Empty: in memory, "/dev/shm". InvalidArgument
  // if it is, contains or lies in the folder of checkpoints.
  std::string async_upload_tmp_folder = {};

  SaveScheduleOptions schedule = {};  // when the job saves and ends
  FailedSavesOptions failures = {};   // when it ends because it cannot save
  RetentionOptions keep = {};         // which permanent checkpoints stay; by default all

  // A file of the local file system by which a person asks the job to save or to end. It contains a
  // number N. N > 0: save at step N and end. N < 0: save at step -N and continue. 0: nothing.
  // Set it on one rank; all ranks obey it. Empty: none. The file is read in its folder also after
  // that is renamed; if another folder has its path then, a note names both. The ".stop_file" in
  // the folder of checkpoints records the request that ended the job, so that the request does not
  // end a later job.
  std::string stop_file_path = {};

  absl::Duration lock_wait = absl::Seconds(10);  // to wait for another holder of the folder
  // Receives sentences for the user, on the rank that has news. May be null. What it throws is
  // ignored.
  std::function<void(const std::string&)> notes = {};
  // Called on rank 0 by the saving thread once a checkpoint is committed, before superfluous ones
  // are deleted. May be null. What it throws becomes a note of the report.
  std::function<void(const SaveReport&)> on_commit = {};
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
