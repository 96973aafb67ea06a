#ifndef TESSERA_COMM_NCCL_NCCL_TASK_H_
#define TESSERA_COMM_NCCL_NCCL_TASK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "comm/endpoint.h"
#include "comm/nccl/device_reducer.h"
#include "comm/nccl/nccl_api.h"
#include "tensor/device.h"

namespace tessera {

class NcclLane;

// State shared by the operations of one rank. Thread-safe.
class NcclRank {
 public:
  NcclRank(NcclApi& api, Stream& compute, DeviceReducer& reducer)
      : api_(api), compute_(compute), reducer_(reducer) {}

  NcclApi& api() { return api_; }
  Stream& compute() { return compute_; }
  DeviceReducer& reducer() { return reducer_; }

  // Returns a new id for communicators of several ranks.
  absl::StatusOr<NcclApi::UniqueId> NewId();
  // Aborts every lane, and those that are created later, too.
  void AbortAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class NcclLane;
  void Add(NcclLane* lane) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(NcclLane* lane) ABSL_LOCKS_EXCLUDED(mutex_);

  NcclApi& api_;
  Stream& compute_;
  DeviceReducer& reducer_;
  Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<NcclLane*> lanes_ ABSL_GUARDED_BY(mutex_);
};

// An NCCL communicator and the stream on which its operations run, in the order of their places.
// A lane without a communicator serves a group of one rank.
//
// Threads: Abort() is thread-safe; the other methods are called by one thread at a time.
class NcclLane {
 public:
  static absl::StatusOr<std::unique_ptr<NcclLane>> Create(NcclRank& shared);
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  Stream& stream() { return stream_; }
  // Returns the id given to Connect().
  const NcclApi::UniqueId& id() const { return id_; }

  // Begins to connect the ranks.
  absl::Status Connect(int ranks, const NcclApi::UniqueId& id, int rank);
  // Takes a communicator that CommSplit() has created.
  void Adopt(NcclApi::Comm comm);

  // Order the queueing of operations: an operation takes a place, is queued when its place is next,
  // and passes.
  uint64_t TakePlace() { return places_++; }
  bool IsNext(uint64_t place) const { return place == next_; }
  void Pass() { ++next_; }

  // Returns whether the communicator takes another call, since nothing is in progress; or its
  // asynchronous error: Unavailable if a peer or the network is the reason, otherwise Internal.
  absl::StatusOr<bool> IsSettled() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls NCCL with the communicator, which must be settled.
  absl::Status Call(const std::function<NcclApi::Result(NcclApi&, NcclApi::Comm)>& call)
      ABSL_LOCKS_EXCLUDED(mutex_);

  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  NcclLane(NcclRank& shared, Stream stream) : shared_(shared), stream_(std::move(stream)) {}
  absl::Status ToStatus(NcclApi::Result result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  NcclRank& shared_;
  Stream stream_;
  NcclApi::UniqueId id_ = {};
  uint64_t places_ = 0, next_ = 0;
  Mutex mutex_;
  NcclApi::Comm comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: none, or aborted
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
};

// An operation on device memory: steps that are queued, in the order of the lane's places, behind
// the work that the compute stream held when the operation was started.
//
// Each step makes at most one call of NCCL. The next one follows when the communicator has settled,
// because only then has the call been queued. The operation has ended when an event behind the last
// step has.
class NcclTask : public Task {
 public:
  explicit NcclTask(NcclRank& shared) : shared_(shared) {}

  bool polled() const final { return true; }
  bool Advance() final;
  std::vector<int> Awaited() const override;  // every other rank of the group
  void Withdraw() final;
  bool queued() const final { return done_.has_value(); }
  void Follow() final { shared_.compute().Wait(*done_); }

 protected:
  using Step = std::function<absl::Status()>;

  // Called once, at the start.
  virtual absl::Status Begin() = 0;
  // Called after Begin() until Enter() has been called. Returns true if the operation has ended
  // without steps.
  virtual absl::StatusOr<bool> Agree() { return false; }
  // Called once the steps have ended on the device. Returns true when nothing is left to do.
  virtual bool Finish() { return true; }

  void Enter(NcclLane* lane, uint64_t place) {
    lane_ = lane;
    place_ = place;
  }
  void AddStep(Step step) { steps_.push_back(std::move(step)); }
  // Makes the operation run after the work that the compute stream holds now.
  absl::Status FollowCompute();
  NcclRank& shared() { return shared_; }
  NcclLane* lane() { return lane_; }

 private:
  absl::StatusOr<bool> TryAdvance();
  // Queues steps; returns true once every step has been queued.
  absl::StatusOr<bool> Queue();

  NcclRank& shared_;
  NcclLane* lane_ = nullptr;
  uint64_t place_ = 0;
  std::vector<Step> steps_;
  size_t next_step_ = 0;
  std::optional<Event> ready_;  // on the compute stream
  std::optional<Event> done_;   // behind the last step
  bool ended_ = false;
  bool failed_ = false;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_TASK_H_
