#ifndef TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_

// The options and results of a CheckpointManager (checkpoint_manager.h), which decides when a job
// saves, which checkpoints it keeps, and where it resumes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"

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

  // Rolling checkpoints: frequent ones, of which only the last two are kept. If a permanent one is
  // due at the same step, only the permanent one is saved. 0: no rolling checkpoints.
  int64_t rolling_interval_steps = 0;

  // Ends of the run, each of which saves a permanent checkpoint.
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
  int stop_signal = 0;        // SIGINT or SIGTERM, for which every other signal counts; 0: none
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

// The reason why a job should end with an error. Ranks agree on a number: never renumber within a
// release.
enum class SaveTrouble {
  kNone = 0,
  kNoRoom = 1,       // the last save has failed for lack of disk space or quota
  kFailures = 2,     // max_failed_saves in a row
  kTooLong = 3,      // no checkpoint for max_without_checkpoint
  kFolderTaken = 4,  // another job saves to the folder
  kLaterSteps = 5,   // the folder holds checkpoints of later steps than the job begins at
};

// The decision of all ranks after a step.
struct SaveDecision {
  SaveKind save = SaveKind::kNone;
  EndReason end = EndReason::kNone;
  // A trouble, unless there is a reason to end, since a job that ends anyway tries to save;
  // kFolderTaken and kLaterSteps in any case. A job that does not save has none but kFolderTaken.
  SaveTrouble trouble = SaveTrouble::kNone;
  int stop_signal = 0;           // to any rank, whatever ends the run; SIGINT before SIGTERM
  bool program_ends = false;     // on any rank
  bool saves_unhealthy = false;  // `save` is of a step that is not healthy on all ranks

  bool operator==(const SaveDecision&) const = default;
};

// ---- Which checkpoints it keeps.

// The permanent checkpoints to keep. A checkpoint is kept if any field keeps it. Zero keeps none;
// if all are zero, everything is kept.
struct RetentionOptions {
  int64_t newest = 0;                            // the number of newest checkpoints
  int64_t every_steps = 0;                       // checkpoints whose step is a multiple of this
  int64_t best = 0;                              // the number with the lowest validation losses
  absl::Duration within = absl::ZeroDuration();  // checkpoints that are not older than this

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

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
