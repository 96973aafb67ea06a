#ifndef TESSERA_COMM_ENDPOINT_H_
#define TESSERA_COMM_ENDPOINT_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace tessera {

class Endpoint;

// A list that grows without moving its elements, and without allocating for the few messages of a
// small operation.
class TransferList {
 public:
  Transfer* Add() {
    if (size_ < kInline) return &inline_[size_++];
    const size_t at = (size_ - kInline) % kBlock;
    if (at == 0) blocks_.push_back(std::make_unique<Transfer[]>(kBlock));
    ++size_;
    return &blocks_.back()[at];
  }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (size_t i = 0; i < size_; ++i) {
      visit(i < kInline ? inline_[i] : blocks_[(i - kInline) / kBlock][(i - kInline) % kBlock]);
    }
  }

 private:
  static constexpr size_t kInline = 4, kBlock = 64;
  size_t size_ = 0;
  std::array<Transfer, kInline> inline_;
  std::vector<std::unique_ptr<Transfer[]>> blocks_;
};

// One rank's part of an operation: posts messages, and acts as they complete.
class Task {
 public:
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Does the next steps of the operation; returns true when it is finished. Called once at the
  // start, and again after messages of this task have completed. Never blocks.
  virtual bool Advance() = 0;

  // Returns whether Advance() is also called whenever the endpoint makes progress, for a task that
  // waits for a device. Constant.
  virtual bool polled() const { return false; }
  // Returns the group ranks that a polled task waits for while it has no message, for diagnostics.
  virtual std::vector<int> Awaited() const { return {}; }
  // Called when the task is given up, after which its buffers may no longer be touched.
  virtual void Withdraw() {}

  // Returns whether all work of a task that ends on a device has been queued there. False for other
  // tasks.
  virtual bool queued() const { return false; }
  // Makes the device's work that is queued from now on run after this task. Called once the task is
  // queued.
  virtual void Follow() {}

  // Sets the size of this rank's data, for timelines.
  void set_payload_bytes(int64_t bytes) { payload_bytes_ = bytes; }

 protected:
  Task() = default;

  // Post a message to or from a group rank. Messages of different phases of the operation never
  // match.
  Transfer* Send(int peer, const void* data, int64_t bytes, int phase = 0);
  Transfer* Receive(int peer, void* data, int64_t bytes, int phase = 0);
  // Posts a message that is not payload: its bytes are not counted.
  Transfer* SendUncounted(int peer, const void* data, int64_t bytes, int phase);
  // Counts payload that was sent by other means than Send().
  void CountSent(int64_t bytes) { counter_->bytes_sent += bytes; }
  // Ends the world with this operation's error. Called only within Advance().
  void Fail(const absl::Status& status);
  int64_t outstanding() const { return outstanding_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_->size()); }
  int world_rank(int group_rank) const { return (*world_ranks_)[group_rank]; }

 private:
  friend class Endpoint;
  friend class Communicator;
  Transfer* Post(bool is_send, int peer, void* data, int64_t bytes, int phase);
  // Tells the timeline of the rank, where it has one, that the operation has ended.
  void RecordEnd() const;

  Endpoint* endpoint_ = nullptr;
  const std::vector<int>* world_ranks_ = nullptr;  // by group rank
  const std::string* group_name_ = nullptr;
  CommCounter* counter_ = nullptr;
  int rank_ = 0;
  CommOp op_ = CommOp::kBarrier;
  uint32_t match_ = 0;
  uint64_t number_ = 0;  // of this operation within its group
  std::string what_;
  std::optional<absl::Duration> timeout_;
  std::chrono::steady_clock::time_point followed_since_;
  int64_t payload_bytes_ = 0;
  std::shared_ptr<TraceRecorder> trace_;  // null unless a timeline is being recorded
  int64_t started_ns_ = 0;                // with one

  TransferList transfers_;
  int64_t outstanding_ = 0;
  bool dirty_ = false;  // messages completed since the last Advance()
  bool finished_ = false;
};

// A match value holds: group, number of the operation in the group (or a message's tag), kind,
// phase.
inline constexpr int kKindBits = 4, kNumberBits = 12, kGroupBits = 11;
static_assert(uint32_t{1} << (kKindBits + kNumberBits + kGroupBits) == kMatchLimit);

// One rank of a world: drives its operations in all groups, waits for them, and records what it is
// doing. Thread-safe.
class Endpoint {
 public:
  // The transport must outlive it.
  Endpoint(Transport* transport, CommOptions options);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  Transport& transport() { return *transport_; }
  const CommOptions& options() const { return options_; }

  // Return and set the next id of a group, on which the members of a group that is split agree.
  uint32_t next_group_id() const { return next_group_id_; }
  void set_next_group_id(uint32_t id) { next_group_id_ = id; }
  // Returns a copy that lives as long as this endpoint.
  const std::string* KeepName(std::string_view name);

  // Starts a task, which must stay alive until it is finished or dropped.
  void Start(Task* task);
  absl::Status Wait(Task* task, std::optional<absl::Duration> timeout);
  absl::StatusOr<bool> Test(Task* task);
  void Progress();

  // Waits until the task has ended or has been queued on its device. Later work of the device
  // follows a queued task, which the endpoint keeps until it has ended; Watch() applies the
  // timeout.
  absl::Status Follow(const std::shared_ptr<Task>& task, std::optional<absl::Duration> timeout);
  // Makes progress, and fails the world if a followed task takes too long or waits for a rank that
  // is gone. Returns the failure of the world. Must be called repeatedly during any wait for the
  // device. Returns soon, unless the world fails.
  absl::Status Watch();
  // Waits for the followed tasks of the group with these ranks.
  void EndFollowed(const std::vector<int>* world_ranks);

  // Returns the status that every call returns once the world has failed; OK before that.
  absl::Status FailureStatus() const;

  // Returns this rank's activity, for the diagnostics of other ranks.
  PeerState Activity() const;

 private:
  friend class Task;
  using Clock = std::chrono::steady_clock;

  void AdvancePolledLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t DriveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdvanceLocked(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropLocked(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<int> AwaitedLocked(Task& task) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  enum class Until { kEnded, kQueued };
  absl::Status WaitUntil(Until until, Task* task, std::optional<absl::Duration> timeout);
  bool Holds(Until until, const Task* task) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFollowed();
  void ForgetWaiting();

  absl::Status Drop(Task* task);
  absl::Status GiveUp(Task* task, absl::StatusCode code, absl::Duration waited);
  bool AnyGone(Task* task, Clock::time_point since);
  std::string Diagnose(const std::vector<int>& awaited);
  void NoteWaiting(Task* task, Clock::time_point since);

  Transport* const transport_;
  const CommOptions options_;
  uint32_t next_group_id_ = 1;

  Mutex mutex_;
  std::vector<Task*> active_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task*> polled_ ABSL_GUARDED_BY(mutex_);  // those of active_ that are polled
  std::vector<std::shared_ptr<Task>> followed_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  // Time at which Watch() next asks whether the ranks that the oldest followed task waits for still
  // exist.
  Clock::time_point next_watch_probe_ ABSL_GUARDED_BY(mutex_);
  std::vector<Transfer*> ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task*> dirty_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> names_ ABSL_GUARDED_BY(mutex_);

  struct LastOperation {
    CommOp op = CommOp::kBarrier;
    uint64_t number = 0;
    const std::string* group = nullptr;
    Clock::time_point ended;
  };
  mutable Mutex activity_mutex_;
  LastOperation last_ ABSL_GUARDED_BY(activity_mutex_);
  // Empty unless a wait has lasted a while.
  std::string waiting_in_ ABSL_GUARDED_BY(activity_mutex_);
  std::vector<int> waiting_for_ ABSL_GUARDED_BY(activity_mutex_);
  Clock::time_point waiting_since_ ABSL_GUARDED_BY(activity_mutex_);
};

// Returns "all-reduce #17 of 'dp' (gradients of bucket 3)".
std::string DescribeOperation(CommOp op, uint64_t number, std::string_view group,
                              std::string_view what);

}  // namespace tessera

#endif  // TESSERA_COMM_ENDPOINT_H_
