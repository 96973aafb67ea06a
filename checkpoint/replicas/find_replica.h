#ifndef TESSERA_CHECKPOINT_REPLICAS_FIND_REPLICA_H_
#define TESSERA_CHECKPOINT_REPLICAS_FIND_REPLICA_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/hosts.h"
#include "checkpoint/include/peer_replicas.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// The replicas that belong to the present job: those of its incarnation, and the replica from which
// it resumed.
struct AcceptedReplicas {
  std::string run;             // the incarnation's name; empty: no such replicas
  std::string base_directory;  // of the replica from which it resumed; empty: no such replica
};

// Finds the newest accepted replica that is complete: some host has an intact copy of each of its
// files in `folder`. Collective; the same result on all ranks. If rank 0's `accepted` is an error,
// all ranks return it; other ranks' values are not used.
absl::StatusOr<FoundReplica> FindReplica(const absl::StatusOr<AcceptedReplicas>& accepted,
                                         const std::shared_ptr<Storage>& folder, const Hosts& hosts,
                                         ProcessGroup& group, absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_REPLICAS_FIND_REPLICA_H_
