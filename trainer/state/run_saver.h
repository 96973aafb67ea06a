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
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "storage/storage.h"
#include "tensor/tensor.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/run_replicas.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// Callbacks of a saver into its process, each of which may be null.
struct RunSaverHooks {
  // The memory of which the copies of this process may use half. Null: all that the system has
  // available, which is too much where the process has not touched all of its own memory yet, or
  // shares the machine.
  std::function<uint64_t()> available_memory_bytes;
  // See SaveOptions::before_commit. With async_save, a background thread calls it.
  std::function<absl::Status()> before_commit;
  NoteSink notes;
};

// What a run continues from, as far as its saves depend on it.
struct SavedBefore {
  // With async_upload: the checkpoint in `save` that the run has resumed from, whose copies nearby
  // are kept until the next save. May be empty.
  std::string resumed_directory;
  // The manifest that the run continues from: what other frameworks call its parameters is saved
  // again. Null: none. Used by Begin() only.
  const ckpt::Manifest* loaded = nullptr;
  // Null without replicate_to_peers.
  std::shared_ptr<RunReplicas> replicas;
};

// The folder `save` of a run: its CheckpointManager, opened by the settings, and what the trainer
// adds to the manager's saves. Every rank has one and makes the same calls.
//
// Asynchronous saves read the state while training continues: call BeforeOverwrite() before
// changing it. Either way the plan of the first save is reused by the later ones.
//
// The state on a device is copied to its mirror first, which is then what the save reads. An
// asynchronous save begins in the first Poll() after that copy has ended.
class RunSaver {
 public:
  // Opens `save`, creates it for a run that Saves(), and locks it, so that a run that could not
  // save ends before it trains; waits a little for another holder to end. A run without the folder,
  // or that does not save, has a manager that decides its end alone. `world` (null for one process)
  // must outlive the saver; with async_save, a communicator for the background is split from it.
  // Collective.
  //
  // FailedPrecondition where nothing can be written, and while another process saves there.
  // InvalidArgument where `save` is itself a checkpoint.
  static absl::StatusOr<std::unique_ptr<RunSaver>> Open(
      const TrainConfig& config, Communicator* world, RunSaverHooks hooks = {},
      absl::Duration lock_wait = absl::Seconds(10));

  // Waits for a save in flight.
  ~RunSaver();

  // Decides when the run saves and ends, and where it resumes.
  ckpt::CheckpointManager& manager() { return *manager_; }

  // The run that Saves() has this state from now on. `chunks` must stay at the same address.
  // Collective.
  absl::Status Begin(std::vector<StateChunk> chunks, SavedBefore before = {});

  // Saves a permanent or a rolling checkpoint, with the optimizer unless no_save_optim; a permanent
  // one then deletes those that the settings do not keep. Synchronous: returns when the checkpoint
  // is committed, or with the error. Asynchronous: returns immediately (or when an earlier save is
  // over, see async_save_skip); errors are outcomes. Precondition: kind is not kNone.
  absl::Status Save(ckpt::Manifest run, ckpt::SaveKind kind);

  // With replicate_to_peers: before Replicate(). See RunReplicas::Begin().
  absl::Status BeginReplicas(bool resumed, std::function<absl::Status()> before_commit,
                             const NoteSink& notes) {
    return before_.replicas->Begin(State(), resumed, std::move(before_commit), notes);
  }

  // Keeps the state in the memory of this machine and of the next one, too, in the background.
  // Precondition: BeginReplicas().
  absl::Status Replicate(ckpt::Manifest run);

  // Whether a save has been started that was not over at the last Poll().
  bool save_in_flight() const { return manager_->save_in_flight(); }

  // Whether a save or a replica may still read the state, so that BeforeOverwrite() is needed.
  bool reads_state() const {
    if (mirror() != nullptr) return mirrored_.has_value();
    return before_.replicas != nullptr || save_in_flight();
  }

  // Returns once `memory` may be changed: on a device, by what is queued from now on.
  void BeforeOverwrite(const TensorView& memory);

  // The saves that have finished since the last call, oldest first. Never waits.
  std::vector<ckpt::SaveOutcome> Poll();
  // Waits for saves in flight.
  std::vector<ckpt::SaveOutcome> Finish();

  // The same for replicas. Cancelled: skipped, because the one before was in flight.
  std::vector<ckpt::SaveOutcome> PollReplicas();
  std::vector<ckpt::SaveOutcome> FinishReplicas();

  // The manifest of a checkpoint that this run has saved, by the directory that its report names.
  absl::StatusOr<ckpt::Manifest> Saved(const std::string& directory) const;

  // Deletes copies nearby and replicas, which no restart will need, and their folders. No save may
  // be in flight. Collective.
  absl::Status ForgetNearbyCopies();

 private:
  RunSaver(const TrainConfig& config, Communicator* world, RunSaverHooks hooks);
  ckpt::CheckpointManagerOptions ManagerOptions() const;
  ckpt::AsyncSaveOptions BackgroundOptions() const;
  ckpt::StateDict State() const;
  DeviceMirror* mirror() const { return chunks_.empty() ? nullptr : chunks_.front().mirror; }
  // Where the state is on a device: begins to copy it, once no save reads the mirror any more.
  absl::Status StartMirror();
  ckpt::SaveRequest RequestOf(ckpt::Manifest run) const;
  // The save in the background whose state has been mirrored begins. An error of the copies becomes
  // its outcome, on every rank.
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
    bool saves = false;
    bool replicates = false;
  };
  std::optional<Mirrored> mirrored_;

  // Destroyed in reverse order: the manager's thread uses the members before it.
  std::unique_ptr<Communicator> background_communicator_;
  std::unique_ptr<ckpt::ProcessGroup> background_group_;
  std::unique_ptr<ckpt::CheckpointManager> manager_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_SAVER_H_
