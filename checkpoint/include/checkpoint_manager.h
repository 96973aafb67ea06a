#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_

// Implemented in checkpoint/manager/checkpoint_manager.cc; Open() and StagingFolderOf() in
// checkpoint/manager/open_folder.cc.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Returns the path of the staging folder that ranks of this user make for the folder `name` with
// async_upload: "/dev/shm/tessera-1000-89abcdef_tmp_ckpt". It may be deleted while no job uses it.
std::string StagingFolderOf(std::string_view name, const std::string& async_upload_tmp_folder = "",
                            const OpenStorageOptions& open = {});

// Manages the checkpoints of one job in one folder: decides when the job saves, which checkpoints
// it keeps, and where it resumes.
//
//   auto manager = CheckpointManager::Open("/runs/a", {.save = {.group = &group},
//                                                      .schedule = {.interval_steps = 100,
//                                                                   .last_step = 1000},
//                                                      .keep = {.newest = 3}});
//   auto resumed = (*manager)->TryResume(state);   // the newest valid checkpoint, if there is one
//   int64_t step = resumed->checkpoint ? resumed->checkpoint->step() : 0;
//   for (bool ends = step >= 1000; !ends;) {
//     ...one step, which calls WaitUntilCopied() before it overwrites memory, if saves are in the
//     background...
//     auto decision = (*manager)->TrySave({.step = ++step}, state);
//     ends = decision->end != EndReason::kNone;
//   }
//
// TryResume() or Begin() says at which step a job begins. If the folder holds checkpoints of later
// steps, the first TrySave() returns an error, because a restart would resume from those instead of
// the job's own. Call AbandonLater() before, or save to another folder.
//
// checkpoint/example/manager.cc is a complete program.
//
// Permanent checkpoints are step directories of the folder. Rolling checkpoints alternate between
// two slots beside them: "rolling-0/step-00000250", "rolling-1/step-00000225". After each permanent
// save, the manager deletes the checkpoints that `keep` does not keep, but never the newest good
// one, nor the one just saved. If the disk is too full for a save, the manager first deletes the
// checkpoints that the new one would replace; after a save that was refused although the disk told
// of enough space, as under a quota, it does so as if the disk had been a byte too small. A save
// that waits for its end, as in the foreground, is then tried once more; the note or error of its
// outcome has that of the first attempt.
//
// Collective: every rank of save.group has a manager and makes the same calls in the same order.
// Calls come from one thread; WaitUntilCopied() and WaitUntilAllCopied() from any.
class CheckpointManager {
 public:
  // Opens the folder that `name` names (OpenStorage()), creates it if it is missing, and locks it
  // until the manager is destroyed, so that no two jobs save there. A job that does not save
  // (schedule.saves) neither creates nor locks the folder, and `name` may be empty.
  //
  // Errors, on every rank:
  //   FailedPrecondition    another job holds the lock
  //   PermissionDenied      nothing can be written to the folder
  //   InvalidArgument       the name is bad, or that of a single checkpoint; options contradict
  //   other codes           of OpenStorage() and of the group
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(
      std::string_view name, CheckpointManagerOptions options, const OpenStorageOptions& open = {});

  // Waits for a save in flight.
  virtual ~CheckpointManager() = default;
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // ---- What every program calls: Open(), and these.

  // Loads the newest valid checkpoint into `state`: the newest one, permanent or rolling, that
  // every rank reads without damage, and whose manifest does not say that the run had diverged.
  // Newer checkpoints, which were skipped, are then quarantined: they get another name, such as
  // "step-00000500.damaged", under which no reader takes them for a checkpoint. A job that does not
  // save leaves them as they are. Without any checkpoint, `state` is unchanged and the result has
  // no checkpoint. Waits for saves in flight first, as AbandonLater() and Begin() do.
  //
  // Errors, the same on every rank, after which nothing is renamed:
  //   NotFound, FailedPrecondition    nothing to resume from; ProblemOf() tells which ResumeProblem
  //   Unavailable                     ranks see different files
  //   other codes                     of Checkpoint::Load()
  virtual absl::StatusOr<ResumeResult> TryResume(const StateDict& state,
                                                 const ResumeOptions& options = {}) = 0;

  // Saves if the schedule asks for it after this step, and returns whether the job ends.
  // Collective: call once after each step, on all ranks. In the foreground, returns when the
  // checkpoint is committed, or with the error of the save. In the background, returns immediately,
  // and outcomes come from Poll(). A decision that ends the job waits for all saves.
  //
  // Errors, with which a job should end, the same on every rank:
  //   ResourceExhausted     the last save failed for lack of disk space or quota, and no deletion
  //                         that `keep` allows makes room for the next one
  //   Aborted               the limits of FailedSavesOptions are reached
  //   FailedPrecondition    another job has taken over the folder, or the folder holds checkpoints
  //                         of later steps than the job begins at
  //   other codes           of a save in the foreground, and of the group
  //
  // Cost: one exchange of about 100 bytes for each rank; for the first decision after Begin(), rank
  // 0 also lists the folder.
  absl::StatusOr<SaveDecision> TrySave(const StepState& now, const StateDict& state,
                                       const Metadata& metadata = {}) {
    return TrySave(now, [&]() -> absl::StatusOr<StateToSave> {
      return StateToSave{&state, &metadata};
    });
  }

  // Waits until bytes [data, data + size_bytes) may be overwritten, or all memory of the state, as
  // AsyncSaver::WaitUntilCopied() does. Returns immediately without saves in the background.
  virtual void WaitUntilCopied(const void* data, uint64_t size_bytes) = 0;
  virtual void WaitUntilAllCopied() = 0;

  // Waits for saves in flight, and returns their outcomes.
  virtual std::vector<SaveOutcome> Finish() = 0;

  // ---- For programs that load by themselves, continue from elsewhere, or report their saves.

  // Opens the folder at the root of a storage, which has a staging tier (Storage::staging()) on all
  // ranks or on none. `to_lock` is another object for the same place, whose folder is locked on
  // rank 0; null: nothing is locked. Without a storage, a job that does not save resumes from
  // nothing.
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(std::shared_ptr<Storage> storage,
                                                                 std::unique_ptr<Storage> to_lock,
                                                                 CheckpointManagerOptions options);

  // Resumes a program that loads by itself: calls `load` with one checkpoint after the other,
  // newest first, until it succeeds. Meanwhile the checkpoint is marked as being read.
  virtual absl::StatusOr<ResumeResult> TryResume(const LoadOnThisRank& load,
                                                 const ResumeOptions& options = {}) = 0;

  // Quarantines, as "abandoned", the checkpoints of later steps than `step`, for a job that has
  // loaded its state from elsewhere and continues from `step`. Returns the new names on rank 0, an
  // empty list on other ranks, and in a job that does not save.
  virtual absl::StatusOr<std::vector<std::string>> AbandonLater(int64_t step) = 0;

  // Begins the job's steps after `step`, and starts its clock. TryResume() calls Begin(). Call it
  // again if the job has loaded its state from elsewhere, or has spent time on its preparation that
  // the schedule should ignore. `last_step` replaces the schedule's (0: none), for a job that
  // numbers its steps from where it resumes.
  virtual void Begin(int64_t step, std::optional<int64_t> last_step = std::nullopt) = 0;

  // Does what the other TrySave() does; calls `describe` only if the step is saved.
  virtual absl::StatusOr<SaveDecision> TrySave(const StepState& now,
                                               const GiveStateToSave& describe) = 0;

  // Calls AsyncSaver::Prepare(). Does nothing without saves in the background.
  virtual void Prepare(const StateDict& state) = 0;

  // Returns the saves that have finished since the last call, oldest first. Never waits.
  virtual std::vector<SaveOutcome> Poll() = 0;

  // Returns the storage. Precondition: the manager has one.
  virtual Storage& storage() const = 0;

 protected:
  CheckpointManager() = default;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_
