#ifndef TESSERA_TRAINER_STATE_RUN_SAVER_H_
#define TESSERA_TRAINER_STATE_RUN_SAVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/program.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/job_saves.h"
#include "comm/communicator.h"
#include "storage/storage.h"
#include "tensor/tensor.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/run_replicas.h"
#include "trainer/state/state_chunks.h"

namespace tessera {

// Callbacks of a saver into its process. Each may be null.
struct RunSaverHooks {
  // Returns an amount of memory; the copies of this process may use half of it. Null: all that the
  // system has available. That is too much if the process has not touched all of its own memory
  // yet, or shares the machine.
  std::function<uint64_t()> available_memory_bytes;
  // SaveOptions::before_commit of the saves. With async_save, a background thread calls it.
  std::function<absl::Status()> before_commit;
  NoteSink notes;
};

// The state from which a run continues, as far as its saves depend on it.
struct SavedBefore {
  // The manifest of the checkpoint from which the run continues; null: none. Used by Begin() alone:
  // its names of parameters in other frameworks are saved again.
  const ckpt::Manifest* loaded = nullptr;
  // The run's replicas; null without replicate_to_peers.
  std::shared_ptr<RunReplicas> replicas;
  // The optimizer's settings if they are the saved run's; null: those of Open(). Used by Begin()
  // alone.
  const OptimizerConfig* optimizer = nullptr;
};

// Saves a run to its folder `save`: the CheckpointManager, opened by the settings, and the
// trainer's additions to its saves. Every rank has a saver and makes the same calls.
//
// Asynchronous saves read the state while training continues: call BeforeOverwrite() before
// changing it. Later saves reuse the plan of the first one.
//
// A state on a device is first copied to its mirror, from which the save reads. An asynchronous
// save begins in the first Poll() after that copy has ended.
class RunSaver {
 public:
  // Opens `save`, creates it for a run that Saves(), and locks it, so that a run that could not
  // save ends before it trains; waits a little for another holder to end. For a run without the
  // folder, or that does not save, the manager only decides when it ends. `world` (null for one
  // process) must outlive the saver; with async_save, a communicator for the background is split
  // from it. Collective.
  //
  // FailedPrecondition while another process saves there. PermissionDenied if nothing can be
  // written. InvalidArgument if `save` is itself a checkpoint.
  static absl::StatusOr<std::unique_ptr<RunSaver>> Open(
      const TrainConfig& config, Communicator* world, RunSaverHooks hooks = {},
      absl::Duration lock_wait = absl::Seconds(10));

  // Waits for a save in flight.
  ~RunSaver();

  // Returns the manager, which decides when the run saves and ends, and where it resumes.
  ckpt::JobSaves& manager() { return *manager_; }

  // Sets the state of a run that Saves(). `chunks` must stay at the same address. Collective.
  absl::Status Begin(std::vector<StateChunk> chunks, SavedBefore before = {});

  // Saves a permanent or a rolling checkpoint, with the optimizer unless no_save_optim. After a
  // permanent one, checkpoints that the settings do not keep are deleted. Synchronous: returns when
  // the checkpoint is committed, or with the error. Asynchronous: returns immediately (or when an
  // earlier save is over, see async_save_skip); errors are outcomes. Precondition: kind is not
  // kNone.
  absl::Status Save(ckpt::Manifest run, ckpt::SaveKind kind);

  // Begins to replicate, with replicate_to_peers; see RunReplicas::Begin(). Call before
  // Replicate().
  absl::Status BeginReplicas(bool resumed, std::function<absl::Status()> before_commit,
                             const NoteSink& notes) {
    return before_.replicas->Begin(State(), resumed, std::move(before_commit), notes);
  }

  // Keeps the state in the memory of this machine and of the next one, too, in the background.
  // Precondition: BeginReplicas().
  void Replicate(ckpt::Manifest run);

  // Returns whether a save has been started that was not over at the last Poll().
  bool save_in_flight() const { return manager_->save_in_flight(); }

  // Returns whether a save or a replica may still read the state, so that BeforeOverwrite() is
  // needed.
  bool reads_state() const {
    if (mirror() != nullptr) return mirrored_.has_value();
    return before_.replicas != nullptr || save_in_flight();
  }

  // Waits until `memory` may be changed; on a device, by work that is queued from now on.
  void BeforeOverwrite(const TensorView& memory);

  // Returns the saves that have finished since the last call, oldest first. Never waits.
  std::vector<ckpt::SaveOutcome> Poll();
  // Waits for saves in flight, and returns their outcomes.
  std::vector<ckpt::SaveOutcome> Finish();

  // Do what Poll() and Finish() do, for replicas. Cancelled: skipped, because the one before was in
  // flight.
  std::vector<ckpt::SaveOutcome> PollReplicas();
  std::vector<ckpt::SaveOutcome> FinishReplicas();

  // Returns the manifest of a checkpoint that this run has saved, by the directory in its report.
  absl::StatusOr<ckpt::Manifest> Saved(const std::string& directory) const;

  // Deletes the replicas, when no restart will need them, and their folders. No save may be in
  // flight. Collective.
  absl::Status DeleteReplicas();

 private:
  RunSaver(const TrainConfig& config, Communicator* world, RunSaverHooks hooks);
  ckpt::CheckpointManagerOptions ManagerOptions() const;
  ckpt::AsyncSaveOptions BackgroundOptions() const;
  ckpt::StateDict State() const;
  DeviceMirror* mirror() const { return chunks_.empty() ? nullptr : chunks_.front().mirror; }
  // Begins to copy a state on a device, once no save reads the mirror any more.
  void StartMirror();
  ckpt::SaveRequest RequestOf(ckpt::Manifest run) const;
  // Begins the background save whose state has been mirrored. An error of the copies becomes its
  // outcome, on every rank.
  void StartMirrored();

  const TrainConfig config_;
  const RunSaverHooks hooks_;
  const std::unique_ptr<ckpt::ProcessGroup> ranks_;
  const RankGroup group_;
  std::vector<StateChunk> chunks_;  // and the rest since Begin()
  SavedBefore before_;
  std::optional<ckpt::OptimizerState> optimizer_names_;  // set if the optimizer is saved
  // A save, a replica, or both, that begin once the mirror has the state.
  struct Mirrored {
    ckpt::SaveRequest request;
    ckpt::SaveKind save = ckpt::SaveKind::kNone;
    bool replicates = false;
  };
  std::optional<Mirrored> mirrored_;

  // Destroyed in reverse order: the manager's thread uses the members before it.
  std::unique_ptr<Communicator> background_communicator_;
  std::unique_ptr<ckpt::ProcessGroup> background_group_;
  std::unique_ptr<ckpt::JobSaves> manager_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_SAVER_H_
