#ifndef TESSERA_COMPUTE_COMM_NCCL_NCCL_LANE_H_
#define TESSERA_COMPUTE_COMM_NCCL_NCCL_LANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "compute/comm/nccl/device_reducer.h"
#include "compute/comm/nccl/nccl_api.h"
#include "compute/tensor/device.h"

namespace tessera {

class NcclLane;

// What the operations of one rank share. Thread-safe.
class NcclRank {
 public:
  NcclRank(NcclApi& api, Stream& compute, DeviceReducer& reducer)
      : api_(api), compute_(compute), reducer_(reducer) {}

  NcclApi& api() { return api_; }
  Stream& compute() { return compute_; }
  DeviceReducer& reducer() { return reducer_; }

  // Aborts every lane, those that are created later too.
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
  // As given to Connect().
  const NcclApi::UniqueId& id() const { return id_; }

  // Begins to connect the ranks.
  absl::Status Connect(int ranks, const NcclApi::UniqueId& id, int rank);
  // Takes a communicator that CommSplit() has created.
  void Adopt(NcclApi::Comm comm);

  // The order in which operations are queued: an operation takes a place, is queued when it is
  // next, and passes.
  uint64_t TakePlace() { return places_++; }
  bool IsNext(uint64_t place) const { return place == next_; }
  void Pass() { ++next_; }

  // Whether the communicator takes another call: nothing is in progress. The communicator's
  // asynchronous error: Unavailable where a peer or the network is the reason, else Internal.
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

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_NCCL_NCCL_LANE_H_
