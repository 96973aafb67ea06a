#ifndef TESSERA_TRAINER_STATE_RUN_SAVER_H_
#define TESSERA_TRAINER_STATE_RUN_SAVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/manifest.h"
#include "compute/comm/communicator.h"
#include "compute/tensor/tensor.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/checkpoints.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// A save that is over, in the foreground or the background.
struct SaveOutcome {
  int64_t step = 0;
  absl::StatusOr<ckpt::SaveReport> report;  // Cancelled: skipped, see async_save_skip
};

// Callbacks of a saver into its process, each of which may be null, and what else it needs to know.
struct RunSaverHooks {
  // The memory of which the copies of this process may use half. Null: all that the system has
  // available, which is too much where the process has not touched all of its own memory yet, or
  // shares the machine.
  std::function<uint64_t()> available_memory_bytes;
  // See SaveOptions::before_commit. With async_save, a background thread calls it.
  std::function<absl::Status()> before_commit;
  // With async_upload: the checkpoint in `save` that the run has resumed from, whose copies nearby
  // are kept until the next save. Empty: none.
  std::string resumed_directory;
};

// The saves of one run into its folder, synchronous or, with async_save, asynchronous. Every rank
// has one and makes the same calls.
//
// Asynchronous saves read the state while training continues: call BeforeOverwrite() before
// changing it. Either way the plan of the first save is reused by the later ones.
//
// The state on a device is copied to its mirror first, which is then what the save reads. An
// asynchronous save begins in the first Poll() after that copy has ended.
class RunSaver {
 public:
  // `chunks` must stay at the same address, as must `group` and `world` (null for one process),
  // from which a communicator for the background is split. Collective.
  static absl::StatusOr<std::unique_ptr<RunSaver>> Create(const TrainConfig& config,
                                                          std::vector<StateChunk> chunks,
                                                          const RankGroup& group,
                                                          Communicator* world,
                                                          RunSaverHooks hooks = {});
  // Waits for a save in flight.
  ~RunSaver();

  // Saves a permanent or a rolling checkpoint, with the optimizer unless no_save_optim; a permanent
  // one then deletes those that the settings do not keep. Synchronous: returns when the checkpoint
  // is committed, or with the error. Asynchronous: returns immediately (or when an earlier save is
  // over, see async_save_skip); errors are outcomes. Precondition: kind is not kNone.
  absl::Status Save(ckpt::Manifest run, ckpt::SaveKind kind);

  // Whether a save has been started whose outcome Poll() has not returned yet.
  bool save_in_flight() const { return started_ > finished_; }

  // Returns once `memory` may be changed: on a device, by what is queued from now on.
  void BeforeOverwrite(const TensorView& memory);

  // The saves that have finished since the last call, oldest first. Never waits.
  std::vector<SaveOutcome> Poll();
  // Waits for saves in flight.
  std::vector<SaveOutcome> Finish();

  // For a process that is about to end with an error: its saves wait for nobody any more.
  void Abandon() { storage_->Abandon(); }

  // With async_upload: deletes the copies nearby, which no restart will need, and their folder. No
  // save may be in flight.
  absl::Status ForgetNearbyCopies();

 private:
  RunSaver(const TrainConfig& config, std::vector<StateChunk> chunks, const RankGroup& group,
           RunSaverHooks hooks);
  absl::Status OpenSaves();
  absl::Status OpenBackground(Communicator* world);
  ckpt::StateDict State() const;
  DeviceMirror* mirror() const { return chunks_.front().mirror; }
  // Where the state is on a device: begins to copy it, once no save reads the mirror any more.
  absl::Status StartMirror();
  // The save in the background whose state has been mirrored begins. An error of the copies becomes
  // its outcome, on every rank.
  void StartMirrored();
  absl::Status SaveInForeground(int64_t step, ckpt::Metadata metadata);
  ckpt::SaveOptions Options();
  // On rank 0, before a save writes: where it goes. Empties a rolling slot; makes room.
  absl::StatusOr<std::string> ChooseRoot(const ckpt::PlannedSave& planned);
  // On rank 0: deletes what may go where the disk is too full for this save.
  absl::Status MakeRoom(const ckpt::PlannedSave& planned, bool rolling);
  // After a save that was committed: what is no longer needed is deleted.
  void AfterCommit(ckpt::SaveReport& report);
  void Prune(ckpt::SaveReport& report);

  const TrainConfig config_;
  const std::vector<StateChunk> chunks_;
  const RankGroup group_;
  const RunSaverHooks hooks_;
  std::optional<ckpt::OptimizerState> optimizer_names_;  // set if the optimizer is saved
  std::unique_ptr<ckpt::Storage> storage_;
  ckpt::TieredStorage* upload_ = nullptr;     // the same, with async_upload
  std::optional<ckpt::Retention> retention_;  // used by the saving thread
  std::string room_note_;                     // likewise: what MakeRoom() has deleted
  ckpt::PlanCache plan_cache_;                // in the foreground
  std::vector<SaveOutcome> done_;             // of synchronous saves
  struct MirroredSave {
    int64_t step = 0;
    ckpt::Metadata metadata;
  };
  std::optional<MirroredSave> mirrored_;  // waits for the mirror
  int64_t started_ = 0;                   // saves
  int64_t finished_ = 0;
  Mutex mutex_;
  std::set<int64_t> rolling_steps_ ABSL_GUARDED_BY(mutex_);

  // Destroyed in reverse order: the saver's threads use the members before it.
  std::unique_ptr<Communicator> background_communicator_;
  std::unique_ptr<ckpt::ProcessGroup> background_group_;
  std::unique_ptr<ckpt::AsyncSaver> background_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_SAVER_H_
