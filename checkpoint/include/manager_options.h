#ifndef TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANAGER_OPTIONS_H_

// Options and results of a CheckpointManager (checkpoint_manager.h): when a job saves, which
// checkpoints it keeps, and where it resumes.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {

class FolderLock;  // checkpoint/include/folder_lock.h

// ---- When a job saves, and when it ends.

struct SaveScheduleOptions {
  // False: nothing is saved, locked or renamed; only the end of the run is decided.
  bool saves = true;

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

// When a job ends because it cannot save.
struct FailedSavesOptions {
  int64_t max_failed_saves = 3;  // in a row; 0: any number
  absl::Duration max_without_checkpoint = absl::InfiniteDuration();
};

// What a rank says after an optimizer step. The facts of all ranks decide together.
struct StepState {
  int64_t step = 0;           // completed; the same on every rank
  int stop_signal = 0;        // SIGINT or SIGTERM, for which every other signal counts; 0: none
  bool records_fail = false;  // what the run writes beside checkpoints cannot be written: it ends
  // The step changed the state, and its loss is plausible. Checkpoints that are due wait for a step
  // that is healthy on every rank, so that retention and rolling slots keep good ones; those that
  // an end of the run or a stop file asks for do not wait.
  bool healthy = true;
};

// The facts of one rank after a step, or of several: the sum of their counts, which an all-reduce
// adds. What each count means is the library's.
struct StepFacts {
  static constexpr int kCounts = 9;
  std::array<int64_t, kCounts> counts = {};

  StepFacts& operator+=(const StepFacts& other) {
    for (int i = 0; i < kCounts; ++i) counts[i] += other.counts[i];
    return *this;
  }
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

// Why a job should end with an error. Ranks agree on a number: never renumber within a release.
enum class SaveTrouble {
  kNone = 0,
  kNoRoom = 1,       // the last save has failed for want of space
  kFailures = 2,     // max_failed_saves in a row
  kTooLong = 3,      // no checkpoint for max_without_checkpoint
  kFolderTaken = 4,  // another job saves to the folder
};

// What all ranks do after a step.
struct SaveDecision {
  SaveKind save = SaveKind::kNone;
  EndReason end = EndReason::kNone;
  // Without a reason to end, or where the folder is taken; a job that ends anyway tries to save.
  SaveTrouble trouble = SaveTrouble::kNone;
  int stop_signal = 0;        // to any rank, whatever ends the run; SIGINT before SIGTERM
  bool records_fail = false;  // on any rank

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
  // Continues from the checkpoint of this step instead of the latest valid one, which is an error
  // where it is not there or damaged. Once it is loaded, checkpoints of later steps are quarantined
  // as "abandoned".
  std::optional<int64_t> step;
  // Begins without a checkpoint where there have been some and none is valid.
  bool ignore_no_valid = false;
};

// What a resume could not find, as a payload of its error: a program may word it for its users.
enum class ResumeProblem {
  kNone,        // the error is of another kind
  kNoSuchStep,  // NotFound: no checkpoint of ResumeOptions::step; lists the steps that exist
  kNoneValid,   // FailedPrecondition: checkpoints are there, or have been, and none is valid
};
ResumeProblem ProblemOf(const absl::Status& status);

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
