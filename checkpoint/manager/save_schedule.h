#ifndef TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_

// When a run saves, and when it ends: a pure policy, without I/O and without a clock.

#include <cstdint>

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

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
