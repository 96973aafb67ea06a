#ifndef TESSERA_TRAINER_STATE_RUN_SAVER_H_
#define TESSERA_TRAINER_STATE_RUN_SAVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "trainer/comm/communicator.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/checkpoints.h"
#include "trainer/state/state_dict.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// A save that is over, in the foreground or the background.
struct SaveOutcome {
  int64_t step = 0;
  absl::StatusOr<ckpt::SaveReport> report;
};

// What a saver asks of the process that it is in; each may be null.
struct RunSaverHooks {
  // Of how much memory the copies of this process may take the half. Null: of all that the system
  // has left, which is too much where the process has not touched all of its own yet, or is not
  // alone.
  std::function<uint64_t()> available_memory_bytes;
  // See SaveOptions::before_commit. With async_save a thread of the background calls it.
  std::function<absl::Status()> before_commit;
};

// The saves of one run into its folder, in the foreground or, with async_save, behind the training.
// Every rank has one and makes the same calls.
//
// Asynchronous saves read the state while the training goes on: whoever changes it calls
// BeforeOverwrite() first. In the foreground the plan of the first save serves the later ones; in
// the background, too.
class RunSaver {
 public:
  // `chunks` must stay where they are, as must `group` and `world` (null for one process), which
  // gets a communicator of its own for the background. Collective.
  static absl::StatusOr<std::unique_ptr<RunSaver>> Create(const TrainConfig& config,
                                                          std::vector<StateChunk> chunks,
                                                          const RankGroup& group,
                                                          Communicator* world,
                                                          RunSaverHooks hooks = {});
  // Waits for a save in flight.
  ~RunSaver();

  // Saves step-N, with the optimizer unless no_save_optim, and prunes beyond max_checkpoint_keep.
  // In the foreground: returns when the checkpoint is committed, or with the reason why it is not.
  // In the background: returns at once (or when an earlier save is over, see async_save_skip),
  // errors are outcomes.
  absl::Status Save(ckpt::Manifest run);

  // Returns once `memory` may change.
  void BeforeOverwrite(const TensorView& memory);

  // The saves that are over since the last call, oldest first. Never waits.
  std::vector<SaveOutcome> Poll();
  // Waits for what is in flight.
  std::vector<SaveOutcome> Finish();

 private:
  RunSaver(const TrainConfig& config, std::vector<StateChunk> chunks, const RankGroup& group,
           RunSaverHooks hooks);
  absl::Status OpenBackground(Communicator* world);
  ckpt::StateDict State() const;
  absl::Status SaveInForeground(int64_t step, ckpt::Metadata metadata);
  // Removes old checkpoints after a save that was committed.
  void Prune(ckpt::SaveReport& report) const;

  const TrainConfig config_;
  const std::vector<StateChunk> chunks_;
  const RankGroup group_;
  const RunSaverHooks hooks_;
  std::optional<ckpt::OptimizerState> optimizer_names_;  // with the optimizer's state
  std::unique_ptr<ckpt::Storage> storage_;
  ckpt::PlanCache plan_cache_;     // in the foreground
  std::vector<SaveOutcome> done_;  // in the foreground

  // Destroyed in reverse: the saver's threads use what stands before it.
  std::unique_ptr<Communicator> background_communicator_;
  std::unique_ptr<ckpt::ProcessGroup> background_group_;
  std::unique_ptr<ckpt::AsyncSaver> background_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_SAVER_H_
