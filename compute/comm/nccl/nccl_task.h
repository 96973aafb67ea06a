#ifndef TESSERA_COMPUTE_COMM_NCCL_NCCL_TASK_H_
#define TESSERA_COMPUTE_COMM_NCCL_NCCL_TASK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/comm/endpoint.h"
#include "compute/comm/nccl/nccl_lane.h"
#include "compute/tensor/device.h"

namespace tessera {

// An operation on device memory: steps that are queued, in the order of the lane's places, behind
// what the compute stream held when the operation was started.
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
  // Called after Begin() until Enter() has been called. True if the operation has ended without it.
  virtual absl::StatusOr<bool> Agree() { return false; }
  // Called once the steps have ended on the device. True when nothing is left to do.
  virtual bool Finish() { return true; }

  void Enter(NcclLane* lane, uint64_t place) {
    lane_ = lane;
    place_ = place;
  }
  void AddStep(Step step) { steps_.push_back(std::move(step)); }
  // What the compute stream holds now comes before the operation.
  absl::Status FollowCompute();
  NcclRank& shared() { return shared_; }
  NcclLane* lane() { return lane_; }

 private:
  absl::StatusOr<bool> TryAdvance();
  // True once every step has been queued.
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

#endif  // TESSERA_COMPUTE_COMM_NCCL_NCCL_TASK_H_
