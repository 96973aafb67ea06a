#include "comm/endpoint.h"

#include <time.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Polls before a wait first reads the clock, and between two readings.
constexpr int64_t kPollsPerClock = 64;
// Shorter waits are not described in diagnostics.
constexpr std::chrono::milliseconds kNoteAfter(20);
constexpr absl::Duration kLongestIdle = absl::Milliseconds(20);
// While a device is polled, which does not wake the host.
constexpr absl::Duration kLongestIdlePolling = absl::Microseconds(50);
// The number of ranks that one message describes.
constexpr size_t kMaxDescribed = 8;

// Returns a time that is accurate to a few milliseconds at a tenth of now()'s cost, since every
// operation records when it ended.
std::chrono::steady_clock::time_point CoarseNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(now.tv_sec) +
                                               std::chrono::nanoseconds(now.tv_nsec));
}

std::string Seconds(std::chrono::steady_clock::duration duration) {
  const int64_t tenths =
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return absl::StrCat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

std::string DescribeOperation(CommOp op, uint64_t number, std::string_view group,
                              std::string_view what) {
  std::string text =
      absl::StrCat(std::string(CommOpName(op)), " #", number, " of '", std::string(group), "'");
  if (!what.empty()) absl::StrAppend(&text, " (", std::string(what), ")");
  return text;
}

Transfer* Task::Send(int peer, const void* data, int64_t bytes, int phase) {
  counter_->bytes_sent += peer == rank_ ? 0 : bytes;
  return Post(true, peer, const_cast<void*>(data), bytes, phase);
}

Transfer* Task::Receive(int peer, void* data, int64_t bytes, int phase) {
  return Post(false, peer, data, bytes, phase);
}

Transfer* Task::SendUncounted(int peer, const void* data, int64_t bytes, int phase) {
  return Post(true, peer, const_cast<void*>(data), bytes, phase);
}

void Task::Fail(const absl::Status& status) {
  if (endpoint_->transport_->failed()) return;
  endpoint_->transport_->Fail(
      {status.code(),
       absl::StrCat(DescribeOperation(op_, number_, *group_name_, what_), ": ", status.message()),
       endpoint_->rank(), true});
}

void Task::RecordEnd() const {
  if (trace_ == nullptr) return;
  TraceEvent event{.category = "communication",
                   .name = absl::StrCat(std::string(CommOpName(op_)), " ", *group_name_),
                   .begin_ns = started_ns_,
                   .end_ns = TraceNow()};
  AddTraceArgument(event.arguments, "axis", *group_name_);
  AddTraceArgument(event.arguments, "first_rank", int64_t{world_ranks_->front()});
  AddTraceArgument(event.arguments, "number", static_cast<int64_t>(number_));
  AddTraceArgument(event.arguments, "bytes", payload_bytes_);
  if (!what_.empty()) AddTraceArgument(event.arguments, "data", what_);
  trace_->AddOperation(*group_name_, std::move(event));
}

Transfer* Task::Post(bool is_send, int peer, void* data, int64_t bytes, int phase) {
  Transfer* transfer = transfers_.Add();
  transfer->is_send = is_send;
  transfer->peer = (*world_ranks_)[peer];
  transfer->match = match_ + static_cast<uint32_t>(phase);
  transfer->data = data;
  transfer->bytes = bytes;
  transfer->task = this;
  ++outstanding_;
  endpoint_->transport_->Post(transfer);
  return transfer;
}

Endpoint::Endpoint(Transport* transport, CommOptions options)
    : transport_(transport), options_(std::move(options)) {}

const std::string* Endpoint::KeepName(std::string_view name) {
  const MutexLock lock(&mutex_);
  return &names_.emplace_back(name);
}

void Endpoint::Start(Task* task) {
  const MutexLock lock(&mutex_);
  task->endpoint_ = this;
  active_.push_back(task);
  if (task->polled()) polled_.push_back(task);
  if (!transport_->failed()) AdvanceLocked(task);
}

void Endpoint::AdvancePolledLocked() {
  // In the order of their start. A task that finishes leaves the lists.
  for (size_t i = 0; i < polled_.size() && !transport_->failed();) {
    Task* const task = polled_[i];
    AdvanceLocked(task);
    if (!task->finished_) ++i;
  }
  std::erase_if(followed_, [](const std::shared_ptr<Task>& task) { return task->finished_; });
}

uint64_t Endpoint::DriveLocked() {
  ended_.clear();
  const uint64_t seen = transport_->Poll(&ended_);
  if (ended_.empty()) {
    AdvancePolledLocked();
    return seen;
  }
  dirty_.clear();
  for (Transfer* transfer : ended_) {
    Task* task = transfer->task;
    transfer->done = true;
    --task->outstanding_;
    if (!transfer->error.empty() && !transport_->failed()) {
      transport_->Fail({absl::StatusCode::kInternal,
                        absl::StrCat(DescribeOperation(task->op_, task->number_, *task->group_name_,
                                                       task->what_),
                                     ": ", transfer->error),
                        rank(), true});
    }
    if (!task->dirty_) dirty_.push_back(task);
    task->dirty_ = true;
  }
  for (Task* task : dirty_) {
    task->dirty_ = false;
    if (!transport_->failed() && !task->polled()) AdvanceLocked(task);
  }
  AdvancePolledLocked();
  return seen;
}

void Endpoint::AdvanceLocked(Task* task) {
  if (!task->Advance()) return;
  task->finished_ = true;
  task->RecordEnd();
  active_.erase(std::find(active_.begin(), active_.end(), task));
  std::erase(polled_, task);
  const MutexLock lock(&activity_mutex_);
  last_ = {task->op_, task->number_, task->group_name_, CoarseNow()};
}

void Endpoint::DropLocked(Task* task) {
  task->transfers_.ForEach([&](Transfer& transfer) {
    if (!transfer.done) transport_->Withdraw(&transfer);
    transfer.done = true;
  });
  const auto at = std::find(active_.begin(), active_.end(), task);
  if (at != active_.end()) active_.erase(at);
  std::erase(polled_, task);
  task->Withdraw();
}

absl::Status Endpoint::Drop(Task* task) {
  const MutexLock lock(&mutex_);
  // Another thread may have finished the task between the two checks.
  if (task->finished_) return absl::OkStatus();
  DropLocked(task);
  return FailureStatus();
}

bool Endpoint::Holds(Until until, const Task* task) const {
  return task->finished_ || (until == Until::kQueued && task->queued());
}

absl::Status Endpoint::Wait(Task* task, std::optional<absl::Duration> timeout) {
  return WaitUntil(Until::kEnded, task, timeout);
}

absl::Status Endpoint::Follow(const std::shared_ptr<Task>& task,
                              std::optional<absl::Duration> timeout) {
  TESSERA_RETURN_IF_ERROR(WaitUntil(Until::kQueued, task.get(), timeout));
  const MutexLock lock(&mutex_);
  if (task->finished_) return absl::OkStatus();
  task->Follow();
  task->timeout_ = timeout.value_or(task->timeout_.value_or(options_.timeout));
  task->followed_since_ = Clock::now();
  if (followed_.empty()) {
    next_watch_probe_ = task->followed_since_ + absl::ToChronoNanoseconds(options_.probe_interval);
  }
  followed_.push_back(task);
  return absl::OkStatus();
}

absl::Status Endpoint::Watch() {
  std::shared_ptr<Task> oldest;
  bool probes = false;
  Clock::time_point now;
  {
    const MutexLock lock(&mutex_);
    if (!active_.empty() && !transport_->failed()) DriveLocked();
    if (!followed_.empty() && !transport_->failed()) {
      oldest = followed_.front();
      now = Clock::now();
      probes = now > next_watch_probe_;
      if (probes) next_watch_probe_ = now + absl::ToChronoNanoseconds(options_.probe_interval);
    }
  }
  if (oldest != nullptr) {
    const absl::Duration waited = absl::FromChrono(now - oldest->followed_since_);
    if (probes && AnyGone(oldest.get(), oldest->followed_since_)) {
      GiveUp(oldest.get(), absl::StatusCode::kUnavailable, waited).IgnoreError();
    } else if (waited >= *oldest->timeout_) {
      GiveUp(oldest.get(), absl::StatusCode::kDeadlineExceeded, waited).IgnoreError();
    }
    if (probes) ForgetWaiting();
  }
  if (transport_->failed()) DropFollowed();
  return FailureStatus();
}

// Their streams end, because no communicator waits for another rank any more.
void Endpoint::DropFollowed() {
  const MutexLock lock(&mutex_);
  for (const std::shared_ptr<Task>& task : followed_) DropLocked(task.get());
  followed_.clear();
}

void Endpoint::EndFollowed(const std::vector<int>* world_ranks) {
  while (true) {
    std::shared_ptr<Task> task;
    {
      const MutexLock lock(&mutex_);
      const auto at = std::find_if(
          followed_.begin(), followed_.end(),
          [&](const std::shared_ptr<Task>& each) { return each->world_ranks_ == world_ranks; });
      if (at == followed_.end()) return;
      task = *at;
      followed_.erase(at);
    }
    Wait(task.get(), std::nullopt).IgnoreError();
  }
}

void Endpoint::ForgetWaiting() {
  const MutexLock lock(&activity_mutex_);
  waiting_in_.clear();
  waiting_for_.clear();
}

absl::Status Endpoint::WaitUntil(Until until, Task* task, std::optional<absl::Duration> timeout) {
  const absl::Duration limit = timeout.value_or(task->timeout_.value_or(options_.timeout));
  const TimeSpent spent(TimeUse::kCommunication);
  TraceSpan span("communication", "wait");
  if (span.active()) {
    span.Add("for", DescribeOperation(task->op_, task->number_, *task->group_name_, task->what_));
  }
  Clock::time_point start{};
  absl::Duration next_probe = options_.probe_interval;
  bool noted = false, slept = false;
  uint64_t last_seen = 0;
  int64_t idle_calls = 0;
  for (int64_t polls = 0;; ++polls) {
    uint64_t seen;
    {
      const MutexLock lock(&mutex_);
      if (Holds(until, task)) break;
      seen = DriveLocked();
      if (Holds(until, task)) break;
    }
    if (transport_->failed()) {
      const absl::Status failure = Drop(task);
      if (failure.ok()) break;
      return failure;
    }
    idle_calls = seen == last_seen ? idle_calls + 1 : 0;
    last_seen = seen;
    if (slept || noted || polls % kPollsPerClock == kPollsPerClock - 1) {
      const Clock::time_point now = Clock::now();
      if (start == Clock::time_point{}) start = now;
      if (!noted && now - start > kNoteAfter) {
        NoteWaiting(task, start);
        noted = true;
      }
      const absl::Duration waited = absl::FromChrono(now - start);
      if (waited > next_probe) {
        next_probe = waited + options_.probe_interval;
        if (AnyGone(task, start)) return GiveUp(task, absl::StatusCode::kUnavailable, waited);
      }
      if (waited >= limit) return GiveUp(task, absl::StatusCode::kDeadlineExceeded, waited);
    }
    slept = transport_->Idle(seen, idle_calls,
                             std::min(task->polled() ? kLongestIdlePolling : kLongestIdle, limit));
  }
  if (noted) ForgetWaiting();
  return absl::OkStatus();
}

absl::StatusOr<bool> Endpoint::Test(Task* task) {
  {
    const MutexLock lock(&mutex_);
    if (!task->finished_) DriveLocked();
    if (task->finished_) return true;
  }
  if (!transport_->failed()) return false;
  const absl::Status failure = Drop(task);
  if (failure.ok()) return true;
  return failure;
}

void Endpoint::Progress() {
  const MutexLock lock(&mutex_);
  if (!active_.empty()) DriveLocked();
}

absl::Status Endpoint::FailureStatus() const {
  if (!transport_->failed()) return absl::OkStatus();
  const Failure failure = transport_->failure();
  return absl::Status(failure.code,
                      failure.rank == transport_->rank()
                          ? failure.message
                          : absl::StrCat("rank ", failure.rank, ": ", failure.message));
}

std::vector<int> Endpoint::AwaitedLocked(Task& task) const {
  std::set<int> receives, sends;
  task.transfers_.ForEach([&](const Transfer& transfer) {
    if (!transfer.done) (transfer.is_send ? sends : receives).insert(transfer.peer);
  });
  // A rank that has not received may only be slower than one that has not sent.
  std::set<int>& awaited = receives.empty() ? sends : receives;
  if (awaited.empty()) {
    for (int peer : task.Awaited()) awaited.insert((*task.world_ranks_)[peer]);
  }
  return {awaited.begin(), awaited.end()};
}

void Endpoint::NoteWaiting(Task* task, Clock::time_point since) {
  std::vector<int> awaited;
  {
    const MutexLock lock(&mutex_);
    awaited = AwaitedLocked(*task);
  }
  const MutexLock lock(&activity_mutex_);
  waiting_in_ = DescribeOperation(task->op_, task->number_, *task->group_name_, task->what_);
  waiting_for_ = std::move(awaited);
  waiting_since_ = since;
}

bool Endpoint::AnyGone(Task* task, Clock::time_point since) {
  NoteWaiting(task, since);
  std::vector<int> awaited;
  {
    const MutexLock lock(&mutex_);
    awaited = AwaitedLocked(*task);
  }
  // Asks about enough ranks to notice a failure; the others are asked about at the deadline.
  if (awaited.size() > 4 * kMaxDescribed) awaited.resize(4 * kMaxDescribed);
  const std::vector<PeerState> states = transport_->Ask(awaited);
  if (std::none_of(states.begin(), states.end(),
                   [](const PeerState& state) { return state.kind == PeerState::kGone; })) {
    return false;
  }
  // Messages that a rank sent before it ended still arrive.
  const MutexLock lock(&mutex_);
  DriveLocked();
  return !task->finished_;
}

std::string Endpoint::Diagnose(const std::vector<int>& awaited) {
  // An awaited rank may itself wait for another one: the missing rank is at the end of the chain.
  std::set<int> known = {rank()};
  std::vector<int> asked(awaited.begin(),
                         awaited.begin() + std::min(awaited.size(), kMaxDescribed));
  std::string text;
  for (int hops = 0; !asked.empty() && known.size() <= 4 * kMaxDescribed && hops < 16; ++hops) {
    known.insert(asked.begin(), asked.end());
    const std::vector<PeerState> states = transport_->Ask(asked);
    std::vector<int> next;
    for (size_t i = 0; i < asked.size(); ++i) {
      absl::StrAppend(&text, "; rank ", asked[i], " ", states[i].text);
      for (int peer : states[i].waiting_for) {
        if (known.insert(peer).second && next.size() < kMaxDescribed) next.push_back(peer);
      }
    }
    asked = std::move(next);
  }
  return text;
}

absl::Status Endpoint::GiveUp(Task* task, absl::StatusCode code, absl::Duration waited) {
  std::vector<int> awaited;
  {
    const MutexLock lock(&mutex_);
    if (task->finished_) return absl::OkStatus();
    awaited = AwaitedLocked(*task);
  }
  const size_t named = std::min<size_t>(awaited.size(), 32);
  std::string message = absl::StrCat(
      DescribeOperation(task->op_, task->number_, *task->group_name_, task->what_),
      " is not complete after ", Seconds(absl::ToChronoNanoseconds(waited)), ": waiting for ",
      awaited.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(awaited.begin(), awaited.begin() + named, ", "),
      awaited.size() > named ? absl::StrCat(" and ", awaited.size() - named, " more") : "",
      Diagnose(awaited));
  transport_->Fail({code, std::move(message), rank(), false});
  return Drop(task);
}

PeerState Endpoint::Activity() const {
  const MutexLock lock(&activity_mutex_);
  const Clock::time_point now = Clock::now();
  if (!waiting_in_.empty()) {
    const size_t named = std::min<size_t>(waiting_for_.size(), 32);
    return {PeerState::kAnswers,
            absl::StrCat("has waited in ", waiting_in_, " for ", Seconds(now - waiting_since_),
                         " for ", waiting_for_.size() == 1 ? "rank " : "ranks ",
                         absl::StrJoin(waiting_for_.begin(), waiting_for_.begin() + named, ", ")),
            std::vector<int>(waiting_for_.begin(), waiting_for_.begin() + named)};
  }
  if (last_.group == nullptr) return {PeerState::kAnswers, "has not communicated yet", {}};
  return {PeerState::kAnswers,
          absl::StrCat("has computed for ", Seconds(now - last_.ended), " since ",
                       DescribeOperation(last_.op, last_.number, *last_.group, "")),
          {}};
}

}  // namespace tessera
