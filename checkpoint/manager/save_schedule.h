#ifndef TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_

// When a run saves, and when it ends: a pure policy, without I/O and without a clock.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/include/manager_options.h"

namespace tessera::ckpt {

// Remembers what is due and which stop request was acted upon. Deterministic. Not thread-safe.
class SaveSchedule {
 public:
  // `resumed_step`: the step that the run continues from, 0 for a new one. A stop file that asks
  // for a step up to it, and was there when the run began, was acted upon by an earlier run.
  SaveSchedule(const SaveScheduleOptions& options, int64_t resumed_step);

  // Call once after each step, in order.
  SaveDecision AfterStep(const StepState& state);

 private:
  bool ActsOnStopFile(const StepState& state);
  EndReason End(const StepState& state, bool stop_file_acts) const;
  void NoteDue(const StepState& state);

  const SaveScheduleOptions options_;
  const int64_t resumed_step_;
  int64_t handled_version_ = 0;     // of the stop file
  absl::Duration last_permanent_;   // elapsed time at the last one
  SaveKind due_ = SaveKind::kNone;  // not saved yet
};

// When a run that cannot save ends: a pure policy, without I/O and without a clock.

struct FailedSavesOptions {
  int64_t max_failed_saves = 3;  // in a row; 0: any number
  absl::Duration max_without_checkpoint = absl::InfiniteDuration();
};

// Why a run should end. Ranks agree on a number: never renumber within a release.
enum class SaveTrouble {
  kNone = 0,
  kNoRoom = 1,    // the last save has failed for want of space
  kFailures = 2,  // max_failed_saves in a row
  kTooLong = 3,   // no checkpoint for max_without_checkpoint
};

// Call Add() with the outcome of each save, in order, then Judge(). Times are since the run began.
// Deterministic. Not thread-safe.
class FailedSaves {
 public:
  explicit FailedSaves(const FailedSavesOptions& options) : options_(options) {}

  // Cancelled: the save was skipped, which is neither a failure nor a checkpoint. All other errors
  // are failures, Aborted among them: the coordinator's, where files of the save are gone.
  void Add(const absl::Status& outcome, absl::Duration elapsed);

  SaveTrouble Judge(absl::Duration elapsed) const;

  int64_t in_a_row() const { return in_a_row_; }
  const absl::Status& last() const { return last_; }  // of those that were not skipped

 private:
  const FailedSavesOptions options_;
  int64_t in_a_row_ = 0;
  absl::Status last_;
  absl::Duration last_checkpoint_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
