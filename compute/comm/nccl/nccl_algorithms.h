#ifndef TESSERA_COMPUTE_COMM_NCCL_NCCL_ALGORITHMS_H_
#define TESSERA_COMPUTE_COMM_NCCL_NCCL_ALGORITHMS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "compute/comm/algorithms.h"
#include "compute/comm/nccl/nccl_lane.h"
#include "compute/comm/nccl/nccl_messages.h"

namespace tessera {

// The operations of one group over NCCL. It must outlive its tasks. `shared` must outlive it.
class NcclAlgorithms final : public Algorithms {
 public:
  // `lane` has a communicator of the group's `size` ranks, or none in a group of one rank.
  NcclAlgorithms(NcclRank& shared, std::unique_ptr<NcclLane> lane, int size)
      : shared_(shared), lane_(std::move(lane)), connects_(size > 1) {}

  std::unique_ptr<Task> AllReduce(Buffer data, ReduceOp op, int rank, int size) override;
  std::unique_ptr<Task> ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                      std::vector<int64_t> counts) override;
  std::unique_ptr<Task> Move(Exchange exchange) override;
  std::unique_ptr<Task> Broadcast(Buffer data, int root) override;
  std::unique_ptr<Task> Send(ConstBuffer data, int destination) override;
  std::unique_ptr<Task> Receive(Buffer data, int source) override;
  std::unique_ptr<Task> Split(int color, int rank, int size,
                              std::unique_ptr<Algorithms>* child) override;

 private:
  NcclRank& shared_;
  const std::unique_ptr<NcclLane> lane_;
  const bool connects_;

  NcclLanes incoming_, outgoing_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_NCCL_NCCL_ALGORITHMS_H_
