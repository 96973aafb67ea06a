#include "trainer/state/run_replicas.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "checkpoint/include/checkpoint.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

// A missing rank is detected by the training's own messages long before.
constexpr absl::Duration kReplicaTimeout = absl::Hours(24);

std::string HostName(const CheckpointConfig& config, int rank) {
  const int64_t per_node = config.replicate_ranks_per_node();
  return per_node > 0 ? absl::StrCat("node", rank / per_node) : std::string();
}

// Names the setting in an error.
absl::Status InReplicas(const absl::Status& status, const char* hint = "") {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("replicate_to_peers: ", status.message(), hint));
}

}  // namespace

RunReplicas::RunReplicas(const TrainConfig& config, Communicator* world, const RankGroup& group)
    : config_(config), world_(world), ranks_(MakeProcessGroup(world)), timeout_(group.timeout) {}

absl::StatusOr<std::shared_ptr<RunReplicas>> RunReplicas::Open(const TrainConfig& config,
                                                               Communicator* world,
                                                               const RankGroup& group) {
  if (!Saves(config)) return nullptr;
  const CheckpointConfig& checkpoint = config.checkpoint();
  std::shared_ptr<RunReplicas> run(new RunReplicas(config, world, group));
  absl::Status ready;
  if (group.ranks.rank() == 0) {
    absl::StatusOr<std::unique_ptr<Storage>> store =
        OpenStorage(checkpoint.save(), StoresOf(checkpoint));
    ready = store.status();
    if (store.ok()) run->store_ = *std::move(store);
    if (ready.ok() && !checkpoint.replicate_to_peers()) {
      ready = ckpt::PeerReplicas::Disown(*run->store_);
    }
  }
  TESSERA_RETURN_IF_ERROR(ckpt::AgreeOnStatus(group.ranks, ready, group.timeout));
  if (!checkpoint.replicate_to_peers()) return nullptr;
  const int rank = group.ranks.rank();
  absl::StatusOr<std::unique_ptr<ckpt::PeerReplicas>> replicas =
      ckpt::PeerReplicas::Open({.folder = ReplicaFolder(checkpoint, rank),
                                .host = HostName(checkpoint, rank),
                                .store = run->store_.get(),
                                .group = run->ranks_.get(),
                                .timeout = group.timeout});
  TESSERA_RETURN_IF_ERROR(InReplicas(replicas.status()));
  run->replicas_ = *std::move(replicas);
  return run;
}

absl::StatusOr<std::optional<SavedRun>> RunReplicas::Find(const NoteSink& notes) {
  if (!ResumesLatest(config_.checkpoint())) return std::nullopt;
  const absl::Duration start = SteadyNow();
  absl::StatusOr<ckpt::FoundReplica> found = replicas_->FindLatest();
  TESSERA_RETURN_IF_ERROR(InReplicas(found.status()));
  if (!found->note.empty() && ranks_->rank() == 0) {
    notes(absl::StrCat("replicas: ", found->note,
                       found->checkpoint.has_value() ? "" : "; going on from the store"));
  }
  if (!found->checkpoint.has_value()) return std::nullopt;
  if (ranks_->rank() == 0) {
    const ckpt::Checkpoint& replica = *found->checkpoint;
    notes(absl::StrFormat("replicas: %s: complete and intact, found in %.2f s",
                          replica.storage().Describe(replica.directory()), SecondsSince(start)));
  }
  return SavedRun{.checkpoint = *std::move(found->checkpoint), .is_own = true, .in_memory = true};
}

absl::Status RunReplicas::Begin(const ckpt::StateDict& state, bool resumed,
                                std::function<absl::Status()> before_commit,
                                const NoteSink& notes) {
  if (world_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(background_communicator_,
                             world_->Split(/*color=*/0, world_->rank(), "replicas"));
  }
  background_group_ = MakeProcessGroup(background_communicator_.get());
  ckpt::AsyncSaveOptions background;
  background.save.group = background_group_.get();
  background.save.timeout = kReplicaTimeout;
  background.save.before_commit = std::move(before_commit);
  // The folder takes what is written as fast as a copy would.
  background.save.staging_bytes = ckpt::SaveOptions().staging_bytes;
  background.when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  TESSERA_RETURN_IF_ERROR(
      InReplicas(replicas_->Begin(state, background, resumed),
                 "; --replicate-folder names another place, --replicate-to-peers=false does "
                 "without"));
  if (ranks_->rank() == 0) {
    notes(absl::StrCat("replicas ", EveryText(config_.checkpoint().replicate_interval(), "step"),
                       " in the memory of ", replicas_->DescribeHosts(), ", in ",
                       ReplicaFolder(config_.checkpoint(), 0)));
  }
  return absl::OkStatus();
}

}  // namespace tessera
