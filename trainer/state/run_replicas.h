#ifndef TESSERA_TRAINER_STATE_RUN_REPLICAS_H_
#define TESSERA_TRAINER_STATE_RUN_REPLICAS_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "checkpoint/include/peer_replicas.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/state_dict.h"
#include "comm/communicator.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/saved_run.h"

namespace tessera {

// The replicas of one run (replicate_to_peers), and the objects that they need. Collective, as
// PeerReplicas is.
class RunReplicas {
 public:
  // Opens the replicas. Without replicate_to_peers, gives up earlier replicas of a run that
  // Saves(), and returns null. Precondition: `save` is locked. `world` (null for one process) must
  // outlive the replicas.
  static absl::StatusOr<std::shared_ptr<RunReplicas>> Open(const TrainConfig& config,
                                                           Communicator* world,
                                                           const RankGroup& group);

  // Returns the newest replica from which the run may continue.
  absl::StatusOr<std::optional<SavedRun>> Find(const NoteSink& notes);

  // Begins to replicate; see PeerReplicas::Begin(). `before_commit` as in SaveOptions.
  absl::Status Begin(const ckpt::StateDict& state, bool resumed,
                     std::function<absl::Status()> before_commit, const NoteSink& notes);

  ckpt::PeerReplicas& replicas() { return *replicas_; }

 private:
  RunReplicas(const TrainConfig& config, Communicator* world, const RankGroup& group);

  const TrainConfig config_;
  Communicator* const world_;
  const std::unique_ptr<ckpt::ProcessGroup> ranks_;
  const absl::Duration timeout_;
  std::unique_ptr<Storage> store_;  // on rank 0

  // Destroyed in reverse order.
  std::unique_ptr<Communicator> background_communicator_;
  std::unique_ptr<ckpt::ProcessGroup> background_group_;
  std::unique_ptr<ckpt::PeerReplicas> replicas_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_REPLICAS_H_
