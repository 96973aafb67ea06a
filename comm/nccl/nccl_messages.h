#ifndef TESSERA_COMM_NCCL_NCCL_MESSAGES_H_
#define TESSERA_COMM_NCCL_NCCL_MESSAGES_H_

// Messages of two ranks.
//
// A message in device memory. The sender announces it; the receiver, once it has been started too,
// answers with the message's place on the lane of this pair and direction, and with the id of its
// communicator; both sides queue their half in the order of places. Announcement and answer travel
// over the endpoint's transport under the message's tag.

#include <map>
#include <memory>

#include "comm/communicator.h"
#include "comm/nccl/nccl_task.h"

namespace tessera {

// Lanes of messages, by the peer's group rank.
using NcclLanes = std::map<int, std::unique_ptr<NcclLane>>;

std::unique_ptr<Task> MakeNcclSendTask(NcclRank& shared, NcclLanes& outgoing, ConstBuffer data,
                                       int destination);
std::unique_ptr<Task> MakeNcclReceiveTask(NcclRank& shared, NcclLanes& incoming, Buffer data,
                                          int source);

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_MESSAGES_H_
