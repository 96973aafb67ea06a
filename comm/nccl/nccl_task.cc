#include "comm/nccl/nccl_task.h"

#include <glog/logging.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

void NcclRank::Add(NcclLane* lane) {
  MutexLock lock(&mutex_);
  lanes_.insert(lane);
  if (aborted_) lane->Abort();
}

void NcclRank::Remove(NcclLane* lane) {
  MutexLock lock(&mutex_);
  lanes_.erase(lane);
}

void NcclRank::AbortAll() {
  MutexLock lock(&mutex_);
  if (aborted_) return;
  aborted_ = true;
  for (NcclLane* lane : lanes_) lane->Abort();
}

absl::StatusOr<std::unique_ptr<NcclLane>> NcclLane::Create(NcclRank& shared) {
  TESSERA_ASSIGN_OR_RETURN(Stream stream, Stream::Create(shared.compute().context()));
  std::unique_ptr<NcclLane> lane(new NcclLane(shared, std::move(stream)));
  shared.Add(lane.get());
  return lane;
}

NcclLane::~NcclLane() {
  shared_.Remove(this);
  MutexLock lock(&mutex_);
  if (comm_ == nullptr) return;
  const NcclApi::Result result = shared_.api().CommDestroy(comm_);
  if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) {
    LOG(ERROR) << "an NCCL communicator cannot be destroyed: " << shared_.api().ErrorString(result);
  }
}

absl::StatusOr<NcclApi::UniqueId> NcclRank::NewId() {
  NcclApi::UniqueId id = {};
  const NcclApi::Result result = api_.GetUniqueId(&id);
  if (result == NcclApi::kSuccess) return id;
  return absl::InternalError(absl::StrCat("NCCL: ", api_.ErrorString(result)));
}

absl::Status NcclLane::Connect(int ranks, const NcclApi::UniqueId& id, int rank) {
  MutexLock lock(&mutex_);
  if (aborted_) return absl::UnavailableError("the NCCL communicators were aborted");
  id_ = id;
  return ToStatus(shared_.api().CommInitRank(&comm_, ranks, id, rank));
}

void NcclLane::Adopt(NcclApi::Comm comm) {
  MutexLock lock(&mutex_);
  comm_ = comm;
  if (!aborted_ || comm_ == nullptr) return;
  shared_.api().CommAbort(comm_);
  comm_ = nullptr;
}

absl::Status NcclLane::ToStatus(NcclApi::Result result) {
  if (result == NcclApi::kSuccess || result == NcclApi::kInProgress) return absl::OkStatus();
  const std::string details = comm_ == nullptr ? "" : shared_.api().LastError(comm_);
  const std::string message = absl::StrCat("NCCL: ", shared_.api().ErrorString(result),
                                           details.empty() ? "" : ": ", details);
  const bool peer = result == NcclApi::kRemoteError || result == NcclApi::kSystemError;
  return peer ? absl::UnavailableError(message) : absl::InternalError(message);
}

absl::StatusOr<bool> NcclLane::IsSettled() {
  MutexLock lock(&mutex_);
  if (aborted_) return absl::UnavailableError("the NCCL communicators were aborted");
  if (comm_ == nullptr) return true;
  NcclApi::Result state = NcclApi::kSuccess;
  TESSERA_RETURN_IF_ERROR(ToStatus(shared_.api().AsyncError(comm_, &state)));
  TESSERA_RETURN_IF_ERROR(ToStatus(state));
  return state != NcclApi::kInProgress;
}

absl::Status NcclLane::Call(const std::function<NcclApi::Result(NcclApi&, NcclApi::Comm)>& call) {
  MutexLock lock(&mutex_);
  if (aborted_) return absl::UnavailableError("the NCCL communicators were aborted");
  CHECK(comm_ != nullptr) << "a group of one rank has no NCCL communicator";
  return ToStatus(call(shared_.api(), comm_));
}

void NcclLane::Abort() {
  MutexLock lock(&mutex_);
  aborted_ = true;
  if (comm_ == nullptr) return;
  const NcclApi::Result result = shared_.api().CommAbort(std::exchange(comm_, nullptr));
  if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) {
    LOG(ERROR) << "an NCCL communicator cannot be aborted: " << shared_.api().ErrorString(result);
  }
}

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

// Any thread that waits for any operation of the endpoint drives this one.
absl::StatusOr<bool> NcclTask::TryAdvance() {
  TESSERA_RETURN_IF_ERROR(shared_.compute().context().runtime().Select());
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
