#include "checkpoint/manager/failed_saves.h"

namespace tessera::ckpt {

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
