#ifndef TESSERA_CHECKPOINT_INCLUDE_AGREE_ON_STATUS_H_
#define TESSERA_CHECKPOINT_INCLUDE_AGREE_ON_STATUS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// Returns OK on every rank if every rank has contributed OK. Otherwise returns, on every rank, an
// error with the code of the first rank that has one and the messages of all, each naming its rank;
// payloads are kept. So no rank keeps waiting for one that failed on its own.
//
// Collective. Bytes on the wire: the messages to rank 0, the combined one to every rank.
absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_AGREE_ON_STATUS_H_
