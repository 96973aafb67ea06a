#ifndef TESSERA_COMM_TREE_TASKS_H_
#define TESSERA_COMM_TREE_TASKS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/endpoint.h"

namespace tessera {

// Operations on little data in several steps, in each of which ranks pass on what they have
// received. Their time grows with the logarithm of the number of ranks.

std::unique_ptr<Task> MakeTreeBroadcastTask(Buffer data, int root);

// Makes a dissemination barrier: in round i each rank notifies the rank that is 2^i further on.
std::unique_ptr<Task> MakeBarrierTask();

// Makes a gather of byte strings. `mine` must stay valid; `gathered` is filled on the root.
std::unique_ptr<Task> MakeGatherBytesTask(std::string_view mine, int root,
                                          std::vector<std::string>* gathered);
// Copies the root's *bytes to the other ranks' *bytes.
std::unique_ptr<Task> MakeBroadcastBytesTask(std::string* bytes, int root);

}  // namespace tessera

#endif  // TESSERA_COMM_TREE_TASKS_H_
