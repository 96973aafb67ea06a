#ifndef TESSERA_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define TESSERA_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl/nccl_messages.h"
#include "comm/nccl/nccl_task.h"

namespace tessera {

// A group whose buffers are in device memory and move over NCCL.
class NcclCommunicator final : public Communicator {
 public:
  // `lane` has a communicator of the group's ranks, or none in a group of one rank. `shared` must
  // outlive this object.
  NcclCommunicator(Endpoint* endpoint, CommGroup group, NcclRank& shared,
                   std::unique_ptr<NcclLane> lane)
      : Communicator(endpoint, std::move(group)), shared_(shared), lane_(std::move(lane)) {}
  ~NcclCommunicator() override { EndFollowed(); }

 protected:
  std::unique_ptr<Task> MakeAllReduce(Buffer data, ReduceOp op) override;
  std::unique_ptr<Task> MakeReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                          std::vector<int64_t> counts) override;
  std::unique_ptr<Task> MakeExchange(Exchange exchange) override;
  std::unique_ptr<Task> MakeBroadcast(Buffer data, int root) override;
  std::unique_ptr<Task> MakeSend(ConstBuffer data, int destination) override;
  std::unique_ptr<Task> MakeReceive(Buffer data, int source) override;
  std::unique_ptr<Task> MakeSplit(int color, CommGroup group,
                                  std::unique_ptr<Communicator>* child) override;

 private:
  NcclRank& shared_;
  const std::unique_ptr<NcclLane> lane_;
  NcclLanes incoming_, outgoing_;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_COMMUNICATOR_H_
