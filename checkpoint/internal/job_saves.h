#ifndef TESSERA_CHECKPOINT_INTERNAL_JOB_SAVES_H_
#define TESSERA_CHECKPOINT_INTERNAL_JOB_SAVES_H_

// Implemented in checkpoint/manager/checkpoint_manager.cc; Open() by a name in
// checkpoint/manager/open_folder.cc.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The reason why a job should end with an error. Ranks agree on a number: never renumber within a
// release.
enum class SaveTrouble {
  kNone = 0,
  kNoRoom = 1,       // the last save lacked disk space or quota, and the next one makes no room
  kFailures = 2,     // max_failed_saves in a row
  kTooLong = 3,      // no checkpoint for max_without_checkpoint
  kFolderTaken = 4,  // another job saves to the folder
  kLaterSteps = 5,   // the folder holds checkpoints of later steps than the job begins at
};

struct JobDecision : SaveDecision {
  // kNone if there is a reason to end, since a job that ends anyway tries to save; but kFolderTaken
  // and kLaterSteps in any case. A job that does not save has kFolderTaken only.
  SaveTrouble trouble = SaveTrouble::kNone;
};

// Adds up each count over all ranks, in place, as an all-reduce does. The meaning of each count is
// internal to the library.
using SumOverRanks = std::function<absl::Status(std::span<int64_t> counts)>;

// The parts of CheckpointManager::TrySave(), for a program whose own exchange after each step can
// carry the counts, or that acts between the decision and the save:
//
//   const auto decision = saves.Decide({.step = step}, my_all_reduce);
//   if (decision->trouble != SaveTrouble::kNone) ...ends with ErrorOf()...
//   if (decision->end != EndReason::kNone) saves.Finish();
//   if (decision->save != SaveKind::kNone) saves.Save(...);
//   if (decision->end != EndReason::kNone) saves.Finish();
//
// Finish() is called before the last save, so that it is not skipped, and after it. After the last
// step, it also deletes the staging folder.
//
// Threads: CheckFolder() may be called from any.
class JobSaves : public CheckpointManager {
 public:
  // Do what CheckpointManager::Open() does.
  static absl::StatusOr<std::unique_ptr<JobSaves>> Open(std::string_view name,
                                                        CheckpointManagerOptions options,
                                                        const OpenStorageOptions& open = {});
  static absl::StatusOr<std::unique_ptr<JobSaves>> Open(std::shared_ptr<Storage> storage,
                                                        std::unique_ptr<Storage> to_lock,
                                                        CheckpointManagerOptions options);

  // Returns what all ranks do after this step; equal on every rank. `sum` is called once; null: the
  // ranks of save.group exchange the counts.
  virtual absl::StatusOr<JobDecision> Decide(const StepState& now,
                                             const SumOverRanks& sum = nullptr) = 0;
  // Saves now, in the foreground or background. `kind` is not kNone. In the background, the call
  // for a decision may come after later steps, when the state is in memory; from the decision on,
  // the save is in flight. FailedPrecondition in a job that does not save.
  virtual absl::Status Save(const SaveRequest& request, const StateDict& state,
                            SaveKind kind = SaveKind::kPermanent) = 0;
  // Replaces Save() on a rank that cannot save, as AsyncSaver::Refuse() replaces Start(): the save
  // fails on all ranks. Poll() returns the error as the outcome.
  virtual void Refuse(int64_t step, const absl::Status& error) = 0;

  // Returns whether a background save was decided whose outcome Decide(), Poll() and Finish() have
  // not seen yet.
  virtual bool save_in_flight() const = 0;
  // Returns the outcome of the newest finished save that was not skipped.
  virtual const absl::Status& last_save() const = 0;

  // Returns the error with which a job ends for a trouble; OK for kNone. For kNoRoom, waits for
  // saves in flight, which may find room.
  virtual absl::Status ErrorOf(SaveTrouble trouble) = 0;

  // Returns FailedPrecondition if another job has taken the folder over. Asks the file system, as
  // FolderLock::Confirm() does, and may wait for it. Does not ask an object store: the lease's own
  // thread does so, several times in each period. On rank 0.
  virtual absl::Status CheckFolder() const = 0;

  // Ends all waits and retries of saves. Call when the process is about to end with an error.
  virtual void Abandon() = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_JOB_SAVES_H_
