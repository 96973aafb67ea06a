#ifndef TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_

// Options and results of a CheckpointManager (checkpoint_manager.h): when a job saves, which
// checkpoints it keeps, and where it resumes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {

class FolderLock;  // checkpoint/manager/folder_lock.h

// ---- When a job saves, and when it ends.

struct SaveScheduleOptions {
  bool saves = true;  // false: nothing is ever saved, only the end of the run is decided

  // Permanent checkpoints. Each zero: not for this reason. The last step of a run is always saved.
  int64_t interval_steps = 0;
  absl::Duration interval = absl::ZeroDuration();  // since the last permanent one
  bool continuous = false;                         // the next one begins when the last one is done

  // Rolling checkpoints: frequent ones, of which only the last two are kept. Where a permanent one
  // is due at the same step, only that one is saved. 0: none are saved.
  int64_t rolling_interval_steps = 0;

  // Ends of the run, each of which saves a permanent checkpoint.
  int64_t last_step = 0;
  int64_t exit_interval_steps = 0;  // at the first step that this divides; 0: never
  absl::Duration exit_after = absl::InfiniteDuration();
  bool saves_at_signals = true;  // false: a signal ends the run without a checkpoint
};

enum class SaveKind { kNone, kRolling, kPermanent };

enum class EndReason {
  kNone,
  kLastStep,
  kSignal,
  kRecordsFail,
  kStopFile,
  kExitDuration,
  kExitInterval
};

// The contents of a stop file: one integer, by which a person asks a job to save and to end.
struct StopRequest {
  // N > 0: save at step N and end the run. N < 0: save at step -N and continue. 0: nothing.
  int64_t step = 0;
  // Counts what was written to the file, so that one value is acted upon once. 1: the contents that
  // the file had when the run began; 0: never read.
  int64_t version = 0;
};

// The situation after an optimizer step. Ranks that pass equal values decide equally.
struct StepState {
  int64_t step = 0;           // completed
  absl::Duration elapsed;     // since the run began
  int stop_signal = 0;        // 0: none
  bool records_fail = false;  // what the run writes beside checkpoints cannot be written: it ends
  StopRequest stop_file;
  bool save_in_flight = false;  // an asynchronous save is not finished
  // The step changed the state, and its loss is plausible. Checkpoints that are due wait for the
  // next healthy step, so that retention and rolling slots keep good ones; those that an end of the
  // run or a stop file asks for do not wait.
  bool healthy = true;
};

struct SaveDecision {
  SaveKind save = SaveKind::kNone;
  EndReason end = EndReason::kNone;

  bool operator==(const SaveDecision&) const = default;
};

// ---- Which checkpoints it keeps.

// A checkpoint is kept if any of these keeps it. Each zero: keeps none; all zero: everything is
// kept.
struct RetentionOptions {
  int64_t newest = 0;                            // that many
  int64_t every_steps = 0;                       // those whose step this divides
  int64_t best = 0;                              // that many, by validation loss
  absl::Duration within = absl::ZeroDuration();  // those saved since

  bool deletes() const {
    return newest > 0 || every_steps > 0 || best > 0 || within > absl::ZeroDuration();
  }
};

// ---- Where it resumes.

struct ResumeOptions {
  // Renames what was skipped, which would otherwise be in the way of the coming saves: from
  // "step-00000500" to "step-00000500.damaged", or to "step-00000500.damaged-2" and so on where
  // that exists. Readers do not take it for a checkpoint any more, but all of it is still there.
  // False: leaves it as it is, for a job that does not save.
  bool quarantine = true;
  // Continues from the checkpoint of this step instead of the latest valid one. NotFound, listing
  // the steps that exist, if it does not, and the error of its manifest or files if it is damaged.
  // Once it is loaded, checkpoints of later steps are quarantined as "abandoned".
  std::optional<int64_t> step;
  // How a user asks for a step, for the error's message: "ckpt_step 400".
  std::string step_name = "step";
  // Begins without a checkpoint where there have been some and none is valid.
  bool ignore_no_valid = false;
  // How a user sets ignore_no_valid, for the error's message: "--resume-anew begins at step 0".
  std::string ignore_no_valid_hint;
  // How a user has named the folder, for the error of a rank that has none: "save: no folder /a".
  std::string no_folder = "no folder";
  // On rank 0, the lock of the folder, where the program holds it and not the manager: nothing is
  // renamed where it was lost meanwhile. May be null.
  FolderLock* lock = nullptr;
  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks
};

// A checkpoint that was newer than the one resumed from, and why that one was not taken.
struct SkippedCheckpoint {
  std::string directory;  // as it was called
  std::string moved_to;   // empty: left as it is
  // The word in the new name: "damaged", or "diverged" where the manifest says of the state that it
  // is not finite or its loss not plausible.
  std::string word;
  absl::Status reason;
};

struct ResumeResult {
  // The checkpoint that every rank has loaded, which retention may delete from then on; nullopt:
  // begin without one.
  std::optional<Checkpoint> checkpoint;
  // On rank 0, empty elsewhere.
  std::vector<SkippedCheckpoint> skipped;  // newest first
  std::vector<std::string> abandoned;      // the new names of later checkpoints than options.step
};

// "skipped /runs/a/step-00000500: why; it is now called step-00000500.damaged".
std::string Describe(const Storage& storage, const SkippedCheckpoint& skipped);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
