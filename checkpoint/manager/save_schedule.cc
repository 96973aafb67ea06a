#include "checkpoint/manager/save_schedule.h"

#include <algorithm>

namespace tessera::ckpt {
namespace {

bool Divides(int64_t interval, int64_t step) { return interval > 0 && step % interval == 0; }

}  // namespace

SaveSchedule::SaveSchedule(const SaveScheduleOptions& options, int64_t resumed_step)
    : options_(options), resumed_step_(resumed_step) {}

bool SaveSchedule::ActsOnStopFile(const StepState& state) {
  const StopRequest& request = state.stop_file;
  if (request.step == 0 || request.version == handled_version_) return false;
  // The smallest integer has no opposite.
  const int64_t step = request.step > 0 ? request.step : -(request.step + 1) + 1;
  if (request.version == 1 && step <= resumed_step_) {
    handled_version_ = request.version;
    return false;
  }
  if (state.step < step) return false;
  handled_version_ = request.version;
  return true;
}

EndReason SaveSchedule::End(const StepState& state, bool stop_file_acts) const {
  if (state.step >= options_.last_step) return EndReason::kLastStep;
  if (state.stop_signal != 0) return EndReason::kSignal;
  if (state.records_fail) return EndReason::kRecordsFail;
  if (stop_file_acts && state.stop_file.step > 0) return EndReason::kStopFile;
  if (state.elapsed >= options_.exit_after) return EndReason::kExitDuration;
  if (Divides(options_.exit_interval_steps, state.step)) return EndReason::kExitInterval;
  return EndReason::kNone;
}

void SaveSchedule::NoteDue(const StepState& state) {
  const bool by_clock = options_.interval > absl::ZeroDuration() &&
                        state.elapsed - last_permanent_ >= options_.interval;
  if (Divides(options_.interval_steps, state.step) || by_clock ||
      (options_.continuous && !state.save_in_flight)) {
    due_ = SaveKind::kPermanent;
  } else if (Divides(options_.rolling_interval_steps, state.step)) {
    due_ = std::max(due_, SaveKind::kRolling);
  }
}

SaveDecision SaveSchedule::AfterStep(const StepState& state) {
  const bool stop_file_acts = ActsOnStopFile(state);
  SaveDecision decision{.end = End(state, stop_file_acts)};
  if (!options_.saves) return decision;
  NoteDue(state);
  const bool asked = decision.end == EndReason::kSignal ? options_.saves_at_signals
                                                        : decision.end != EndReason::kNone;
  if (asked || stop_file_acts) {
    decision.save = SaveKind::kPermanent;
  } else if (state.healthy) {
    decision.save = due_;
  }
  if (decision.save != SaveKind::kNone) due_ = SaveKind::kNone;
  if (decision.save == SaveKind::kPermanent) last_permanent_ = state.elapsed;
  return decision;
}

void FailedSaves::Add(const absl::Status& outcome, absl::Duration elapsed) {
  if (absl::IsCancelled(outcome)) return;
  last_ = outcome;
  in_a_row_ = outcome.ok() ? 0 : in_a_row_ + 1;
  if (outcome.ok()) last_checkpoint_ = elapsed;
}

SaveTrouble FailedSaves::Judge(absl::Duration elapsed) const {
  if (absl::IsResourceExhausted(last_)) return SaveTrouble::kNoRoom;
  if (options_.max_failed_saves > 0 && in_a_row_ >= options_.max_failed_saves) {
    return SaveTrouble::kFailures;
  }
  if (elapsed - last_checkpoint_ >= options_.max_without_checkpoint) return SaveTrouble::kTooLong;
  return SaveTrouble::kNone;
}

}  // namespace tessera::ckpt
