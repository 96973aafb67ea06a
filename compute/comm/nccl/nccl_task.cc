#include "compute/comm/nccl/nccl_task.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera {

bool NcclTask::Advance() {
  if (failed_) return false;
  const absl::StatusOr<bool> done = TryAdvance();
  if (done.ok()) return *done;
  failed_ = true;
  Fail(done.status());
  return false;
}

std::vector<int> NcclTask::Awaited() const {
  std::vector<int> others;
  for (int i = 0; i < size(); ++i) {
    if (i != rank()) others.push_back(i);
  }
  return others;
}

void NcclTask::Withdraw() {
  shared_.AbortAll();
  if (next_step_ == 0) return;
  // Ends, because no communicator waits for another rank any more.
  lane_->stream().context().runtime().SynchronizeStream(lane_->stream().handle()).IgnoreError();
}

absl::Status NcclTask::FollowCompute() {
  if (!ready_.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(Event ready, Event::Create(shared_.compute().context()));
    ready_.emplace(std::move(ready));
  }
  ready_->Record(shared_.compute());
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclTask::TryAdvance() {
  if (!ready_.has_value()) {
    TESSERA_RETURN_IF_ERROR(FollowCompute());
    TESSERA_RETURN_IF_ERROR(Begin());
  }
  if (lane_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const bool ended, Agree());
    if (ended || lane_ == nullptr) return ended;
  }
  if (!done_.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const bool queued, Queue());
    if (!queued) return false;
  }
  if (!ended_) {
    TESSERA_RETURN_IF_ERROR(lane_->IsSettled().status());
    TESSERA_ASSIGN_OR_RETURN(ended_, done_->IsDone());
  }
  return ended_ && Finish();
}

absl::StatusOr<bool> NcclTask::Queue() {
  if (!lane_->IsNext(place_)) return false;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool settled, lane_->IsSettled());
    if (!settled) return false;
    if (next_step_ == steps_.size()) break;
    if (next_step_ == 0) lane_->stream().Wait(*ready_);
    TESSERA_RETURN_IF_ERROR(steps_[next_step_++]());
  }
  TESSERA_ASSIGN_OR_RETURN(Event done, Event::Create(shared_.compute().context()));
  done_.emplace(std::move(done));
  done_->Record(lane_->stream());
  lane_->Pass();
  return true;
}

}  // namespace tessera
