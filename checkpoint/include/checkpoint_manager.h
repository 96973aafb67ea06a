#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera {}  // namespace tessera

namespace tessera::ckpt {

// The library's own.
class FolderLock;
class PlanCache;
class Retention;
class SaveSchedule;
struct PlannedSave;
struct SaveHooks;

struct CheckpointManagerOptions {
  // The ranks of the job, deadlines, the layout of the files, before_commit. Its metadata is not
  // used: each save has its own.
  SaveOptions save;

  // Saves in the background where it is set. Its save.group must be a group that nothing else uses,
  // of the same ranks as save.group.
  std::optional<AsyncSaveOptions> background;

  SaveScheduleOptions schedule;  // when TrySave() saves
  RetentionOptions keep;         // which permanent checkpoints stay; by default all
  ResumeOptions resume;          // of TryResume()
};

// The checkpoints of one job in one folder: when it saves, what it keeps, and where it resumes.
//
//   auto manager = CheckpointManager::Open("/runs/a", {.save = {.group = &group},
//                                                      .schedule = {.interval_steps = 100,
//                                                                   .last_step = 1000},
//                                                      .keep = {.newest = 3}});
//   auto resumed = (*manager)->TryResume(state);   // the newest valid checkpoint, if there is one
//   int64_t step = resumed->checkpoint ? resumed->checkpoint->step() : 0;
//   for (bool ends = false; !ends;) {
//     ...one step, which calls WaitUntilCopied() before it overwrites memory, if saves are in the
//     background...
//     auto decision = (*manager)->TrySave({.step = ++step}, state);
//     ends = decision->end != EndReason::kNone;
//   }
//
// checkpoint/example/manager.cc is a complete program.
//
// Permanent checkpoints are step directories of the folder. Rolling ones alternate between two
// slots beside them: "rolling-0/step-00000250", "rolling-1/step-00000225". After each permanent
// one, those that `keep` gives up are deleted, never the newest good one. Where the disk is too
// full for a save, those that the save would replace are deleted first.
//
// Collective: every rank of save.group has a manager and makes the same calls in the same order.
// Calls come from one thread; WaitUntilCopied() and WaitUntilAllCopied() from any.
class CheckpointManager {
 public:
  // Opens the folder that `name` names (OpenStorage()), creates it where it is not there, and locks
  // it until the manager is destroyed, so that no two jobs save there. FailedPrecondition, on every
  // rank, while another job does, after a wait of ten seconds; InvalidArgument for a bad name; the
  // errors of OpenStorage().
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(
      std::string_view name, CheckpointManagerOptions options, const OpenStorageOptions& open = {});

  // Over the root of a storage, for a job that holds the lock of the folder itself.
  CheckpointManager(std::shared_ptr<Storage> storage, CheckpointManagerOptions options);

  // Waits for a save in flight.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // Loads the newest valid checkpoint into `state`: the newest, permanent or rolling, that every
  // rank reads without damage, and whose manifest does not say that the run had diverged. Newer
  // ones, which were skipped, are renamed once it is loaded (ResumeOptions::quarantine). Without
  // any checkpoint, `state` is unchanged and the result has none.
  //
  // Errors, the same on every rank, with nothing renamed: FailedPrecondition, listing them, where
  // checkpoints are there, or have been, and none is valid; Unavailable where ranks see different
  // files; NotFound where ResumeOptions::step names none; otherwise as Checkpoint::Load().
  absl::StatusOr<ResumeResult> TryResume(const StateDict& state);

  // Saves if the schedule says so after this step; call it once after each. now.elapsed is measured
  // by rank 0. In the foreground, returns when the checkpoint is committed, or with the error of
  // the save. In the background, returns immediately, and outcomes come from Poll(); but a decision
  // that ends the job waits for all saves.
  absl::StatusOr<SaveDecision> TrySave(StepState now, const StateDict& state,
                                       const Metadata& metadata = {});

  // What TrySave() does once it has decided: saves now.
  absl::Status Save(const SaveRequest& request, const StateDict& state);
  // See AsyncSaver::Refuse(); in the background only.
  void Refuse(int64_t step, const absl::Status& error);

  // See AsyncSaver. Without saves in the background, these return immediately.
  void Prepare(const StateDict& state);
  void WaitUntilCopied(const void* data, uint64_t size_bytes);
  void WaitUntilAllCopied();

  // Whether a save in the background has been started of which TrySave(), Poll() and Finish() have
  // not seen the outcome yet.
  bool save_in_flight() const { return started_ > finished_; }
  // The saves that have finished since the last call, oldest first. Never waits.
  std::vector<SaveOutcome> Poll();
  // Waits for saves in flight.
  std::vector<SaveOutcome> Finish();

  // For a process that is about to end with an error: its saves wait for nobody any more.
  void Abandon() { storage_->Abandon(); }

  Storage& storage() { return *storage_; }

 private:
  SaveHooks Hooks();
  absl::StatusOr<std::string> ChooseRoot(const PlannedSave& planned);
  void AfterCommit(SaveReport& report);
  void CollectOutcomes();
  void WaitForSaves();
  ProcessGroup& group() { return options_.save.group != nullptr ? *options_.save.group : alone_; }

  std::unique_ptr<FolderLock> lock_;  // on rank 0, after Open()
  const std::shared_ptr<Storage> storage_;
  CheckpointManagerOptions options_;
  SingleProcessGroup alone_;
  const std::unique_ptr<Retention> retention_;   // used by the saving thread
  std::string room_note_;                        // likewise: what was deleted to make room
  const std::unique_ptr<PlanCache> plan_cache_;  // of saves in the foreground
  std::unique_ptr<SaveSchedule> schedule_;       // begins with the first step
  int64_t resumed_step_ = 0;
  const absl::Duration began_;
  std::vector<SaveOutcome> done_;  // not returned yet
  int64_t started_ = 0;            // saves in the background
  int64_t finished_ = 0;
  std::unique_ptr<AsyncSaver> background_;  // its thread uses the members above
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_
