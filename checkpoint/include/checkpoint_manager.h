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

namespace tessera::ckpt {

struct CheckpointManagerOptions {
  // The ranks of the job, deadlines, the layout of the files, before_commit. Its metadata is not
  // used: each save has its own.
  SaveOptions save;

  // Saves in the background where it is set. Its save.group must be a group that nothing else uses,
  // of the same ranks as save.group.
  std::optional<AsyncSaveOptions> background;

  SaveScheduleOptions schedule;  // when the job saves and ends
  FailedSavesOptions failures;   // when it ends because it cannot save
  RetentionOptions keep;         // which permanent checkpoints stay; by default all

  // A file of the local file system by which a person asks the job to save or to end (stop_file.h);
  // empty: none. Each rank that names one reads it, and what one of them reads counts for all: name
  // a file on one rank only. The folder remembers in ".stop_file" which request ended the job, so
  // that it ends no later one.
  std::string stop_file;

  absl::Duration lock_wait = absl::Seconds(10);  // for another holder of the folder to end
  // Receives sentences for the user, on the rank that has something to say. May be null.
  std::function<void(const std::string&)> notes;
  // Called on rank 0 by the saving thread once a checkpoint is committed, before those that it
  // makes superfluous are deleted. May be null.
  std::function<void(const SaveReport&)> on_commit;
};

// Loads a checkpoint on this rank; collective, and returns the same status on all ranks, as
// Checkpoint::Load() does. A rank that fails on its own account agrees with the others first
// (agree_on_status.h), or leaves the group, so that the others' waits end: an error that is not
// known to be of damage (damage.h) and agreed upon ends TryResume() without another call of the
// group.
using LoadOnThisRank = std::function<absl::Status(const Checkpoint&)>;

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
// Calls come from one thread; WaitUntilCopied(), WaitUntilAllCopied() and CheckFolder() from any.
class CheckpointManager {
 public:
  // Opens the folder that `name` names (OpenStorage()), creates it where it is not there, and locks
  // it until the manager is destroyed, so that no two jobs save there. A job that does not save
  // (schedule.saves) neither creates nor locks it. FailedPrecondition, on every rank, while another
  // job holds the lock; InvalidArgument for a bad name; the errors of OpenStorage().
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(
      std::string_view name, CheckpointManagerOptions options, const OpenStorageOptions& open = {});

  // The same over the root of a storage. `to_lock` is another object for the same place, whose
  // folder is locked on rank 0; null: nothing is locked. Without a storage, a job that does not
  // save resumes from nothing.
  static absl::StatusOr<std::unique_ptr<CheckpointManager>> Open(std::shared_ptr<Storage> storage,
                                                                 std::unique_ptr<Storage> to_lock,
                                                                 CheckpointManagerOptions options);

  // Waits for a save in flight.
  virtual ~CheckpointManager() = default;
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // ---- Resuming

  // Loads the newest valid checkpoint into `state`: the newest, permanent or rolling, that every
  // rank reads without damage, and whose manifest does not say that the run had diverged. Newer
  // ones, which were skipped, are quarantined once it is loaded: they get another name, such as
  // "step-00000500.damaged", under which no reader takes them for a checkpoint. A job that does not
  // save leaves them as they are. Without any checkpoint, `state` is unchanged and the result has
  // none.
  //
  // Errors, the same on every rank, with nothing renamed: see ResumeProblem; Unavailable where
  // ranks see different files; otherwise as Checkpoint::Load().
  virtual absl::StatusOr<ResumeResult> TryResume(const StateDict& state,
                                                 const ResumeOptions& options = {}) = 0;

  // The same for a program that loads by itself: `load` is called with one checkpoint after the
  // other, newest first, until it succeeds. While it runs, the checkpoint is marked as being read.
  virtual absl::StatusOr<ResumeResult> TryResume(const LoadOnThisRank& load,
                                                 const ResumeOptions& options = {}) = 0;

  // Quarantines, as "abandoned", the checkpoints of later steps than `step`, from which a job
  // continues that has loaded its state from elsewhere. Returns the new names on rank 0, none on
  // other ranks.
  virtual absl::StatusOr<std::vector<std::string>> AbandonLater(int64_t step) = 0;

  // The job begins its steps after `step`: its time counts from here. TryResume() calls it; for a
  // job that builds something afterwards, or has loaded its state from elsewhere. `last_step`
  // replaces the schedule's, for a job that takes so many steps from wherever it resumes.
  virtual void Begin(int64_t step, std::optional<int64_t> last_step = std::nullopt) = 0;

  // ---- Saving

  // Saves if the schedule says so after this step, and says whether the job ends; call it once
  // after each step. In the foreground, returns when the checkpoint is committed, or with the error
  // of the save. In the background, returns immediately, and outcomes come from Poll(); but a
  // decision that ends the job waits for all saves. Returns an error in place of a trouble.
  //
  // One exchange of about 100 bytes for each rank.
  virtual absl::StatusOr<SaveDecision> TrySave(const StepState& now, const StateDict& state,
                                               const Metadata& metadata = {}) = 0;

  // TrySave() in parts, for a program that has an exchange of its own after each step, in which the
  // facts can ride, or something to do between the decision and the save:
  //
  //   StepFacts facts = manager.Observe({.step = step});
  //   ...adds facts.counts of all ranks, in the program's own all-reduce...
  //   const SaveDecision decision = manager.Decide(step, facts);
  //   if (decision.trouble != SaveTrouble::kNone) ...ends with an error...
  //   if (decision.end != EndReason::kNone) manager.Finish();
  //   if (decision.save != SaveKind::kNone) manager.Save(...);
  //
  // What this rank knows. Never waits for other ranks.
  virtual StepFacts Observe(const StepState& now) = 0;
  // What all ranks do, by the sum of their facts: equal on every rank.
  virtual SaveDecision Decide(int64_t step, const StepFacts& of_all_ranks) = 0;
  // Saves now.
  virtual absl::Status Save(const SaveRequest& request, const StateDict& state) = 0;

  // In the background: a save whose state is not in memory yet counts as in flight from here on;
  // Save() or Refuse() then begins it.
  virtual void Announce() = 0;
  // See AsyncSaver::Refuse(); in the background only.
  virtual void Refuse(int64_t step, const absl::Status& error) = 0;

  // See AsyncSaver. Without saves in the background, these return immediately.
  virtual void Prepare(const StateDict& state) = 0;
  virtual void WaitUntilCopied(const void* data, uint64_t size_bytes) = 0;
  virtual void WaitUntilAllCopied() = 0;

  // Whether a save in the background has been started of which Observe(), Poll() and Finish() have
  // not seen the outcome yet.
  virtual bool save_in_flight() const = 0;
  // The saves that have finished since the last call, oldest first. Never waits.
  virtual std::vector<SaveOutcome> Poll() = 0;
  // Waits for saves in flight.
  virtual std::vector<SaveOutcome> Finish() = 0;
  // The outcome of the newest finished save that was not skipped.
  virtual const absl::Status& last_save() const = 0;

  // FailedPrecondition once it is known that another job has taken the folder over; never waits.
  // On rank 0.
  virtual absl::Status CheckFolder() const = 0;

  // For a process that is about to end with an error: its saves wait for nobody any more.
  virtual void Abandon() = 0;

  // Precondition: there is one.
  virtual Storage& storage() const = 0;

 protected:
  CheckpointManager() = default;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_MANAGER_H_
