#ifndef TESSERA_COMPUTE_COMM_ALGORITHMS_H_
#define TESSERA_COMPUTE_COMM_ALGORITHMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "compute/comm/communicator.h"
#include "compute/comm/endpoint.h"
#include "compute/comm/tasks.h"

namespace tessera {

// How the data of one group moves: a task for each operation whose buffers the caller provides.
// Arguments have been validated; counts have one entry per rank of the group. Operations on byte
// strings, barriers and the agreement on new groups always use the endpoint's transport.
class Algorithms {
 public:
  virtual ~Algorithms() = default;

  virtual std::unique_ptr<Task> AllReduce(Buffer data, ReduceOp op, int rank, int size) = 0;
  virtual std::unique_ptr<Task> ReduceScatter(ConstBuffer input, Buffer output, ReduceOp op,
                                              std::vector<int64_t> counts) = 0;
  // All-gather and all-to-all.
  virtual std::unique_ptr<Task> Move(Exchange exchange) = 0;
  virtual std::unique_ptr<Task> Broadcast(Buffer data, int root) = 0;
  virtual std::unique_ptr<Task> Send(ConstBuffer data, int destination) = 0;
  virtual std::unique_ptr<Task> Receive(Buffer data, int source) = 0;

  // Sets *child to the algorithms of this rank's new group, in which it has rank `rank` of `size`;
  // size 0, and no child, where color < 0. Every rank of the group calls it. Returns a task that
  // must end before the child is used; null where there is nothing to wait for.
  virtual std::unique_ptr<Task> Split(int color, int rank, int size,
                                      std::unique_ptr<Algorithms>* child) = 0;
};

// The tasks of tasks.h: buffers in host memory, messages over the endpoint's transport.
std::unique_ptr<Algorithms> MakeHostAlgorithms();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_ALGORITHMS_H_
