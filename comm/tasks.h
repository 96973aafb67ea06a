#ifndef TESSERA_COMM_TASKS_H_
#define TESSERA_COMM_TASKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/endpoint.h"

namespace tessera {

// The algorithms of the operations, as messages between two ranks. Arguments have been validated;
// counts have one entry per rank of the group. Every piece is sent directly from the rank that has
// it to the rank that needs it, in a single step. No rank depends on another's progress, and each
// sum can be taken in any order. As many bytes are sent as by a ring.

// The data of an all-gather, or of another exchange: a piece is sent to every rank, and one is
// received from every rank. Displacements are in bytes.
struct Exchange {
  const char* send = nullptr;
  std::vector<int64_t> send_at, send_bytes;
  char* receive = nullptr;
  std::vector<int64_t> receive_at, receive_bytes;
};
// Returns where pieces of these sizes begin, one behind the other.
std::vector<int64_t> Displacements(const std::vector<int64_t>& sizes);

std::unique_ptr<Task> MakeExchangeTask(Exchange exchange);

// `output` is this rank's piece of the reduced input.
std::unique_ptr<Task> MakeReduceScatterTask(ConstBuffer input, Buffer output, ReduceOp op,
                                            std::vector<int64_t> counts);

std::unique_ptr<Task> MakeAllReduceTask(Buffer data, ReduceOp op, int rank, int size);

std::unique_ptr<Task> MakeBroadcastTask(Buffer data, int root);

std::unique_ptr<Task> MakeSendTask(ConstBuffer data, int destination);
std::unique_ptr<Task> MakeReceiveTask(Buffer data, int source);

}  // namespace tessera

#endif  // TESSERA_COMM_TASKS_H_
