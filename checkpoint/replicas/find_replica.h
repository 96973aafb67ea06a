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

// The replicas that belong to the present job: all of one incarnation, and the one from which it
// has resumed.
struct AcceptedReplicas {
  std::string run;             // the incarnation's name; empty: none
  std::string base_directory;  // of the one replica; empty: none
};

// Finds the newest accepted replica of which, for every file, some host's `folder` has an intact
// copy. Collective; the same result on all ranks. `accepted` is rank 0's, whose error all ranks
// return.
absl::StatusOr<FoundReplica> FindReplica(const absl::StatusOr<AcceptedReplicas>& accepted,
                                         const std::shared_ptr<Storage>& folder, const Hosts& hosts,
                                         ProcessGroup& group, absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_REPLICAS_FIND_REPLICA_H_
