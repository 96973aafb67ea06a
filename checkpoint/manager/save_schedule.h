#ifndef TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_

// When a run saves, and when it ends: a pure policy, without I/O and without a clock.

#include <cstdint>

#include "absl/time/time.h"

namespace tessera::ckpt {

struct SaveScheduleOptions {
  bool saves = true;  // false: nothing is ever saved, only the end of the run is decided

  // Permanent checkpoints. Each zero: not for this reason. The last step of a run is always saved.
  int64_t interval_steps = 0;
  absl::Duration interval = absl::ZeroDuration();  // since the last permanent one
  bool continuous = false;                         // the next one begins when the last one is done

  // Rolling checkpoints (rolling.h). Where a permanent one is due at the same step, only that one.
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

// The contents of a stop file (stop_file.h).
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

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
