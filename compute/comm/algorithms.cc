#include "compute/comm/algorithms.h"

#include <utility>

namespace tessera {
namespace {

class HostAlgorithms final : public Algorithms {
 public:
  std::unique_ptr<Task> AllReduce(Buffer data, ReduceOp op, int rank, int size) override {
    return MakeAllReduceTask(data, op, rank, size);
  }
  std::unique_ptr<Task> ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                      std::vector<int64_t> counts) override {
    return MakeReduceScatterTask(input, output, op, std::move(counts));
  }
  std::unique_ptr<Task> Move(Exchange exchange) override {
    return MakeExchangeTask(std::move(exchange));
  }
  std::unique_ptr<Task> Broadcast(Buffer data, int root) override {
    return MakeBroadcastTask(data, root);
  }
  std::unique_ptr<Task> Send(ConstBuffer data, int destination) override {
    return MakeSendTask(data, destination);
  }
  std::unique_ptr<Task> Receive(Buffer data, int source) override {
    return MakeReceiveTask(data, source);
  }
  std::unique_ptr<Task> Split(int /*color*/, int /*rank*/, int size,
                              std::unique_ptr<Algorithms>* child) override {
    if (size > 0) *child = MakeHostAlgorithms();
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Algorithms> MakeHostAlgorithms() { return std::make_unique<HostAlgorithms>(); }

}  // namespace tessera
