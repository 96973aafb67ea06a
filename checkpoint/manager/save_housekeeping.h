#ifndef TESSERA_CHECKPOINT_MANAGER_SAVE_HOUSEKEEPING_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVE_HOUSEKEEPING_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/save/run_save.h"
#include "storage/lock/folder_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// What the saves of a job do besides saving: they choose a root, make room on a full disk, ask
// whether the job still has the folder, and delete what a new checkpoint makes superfluous. Used by
// one thread at a time: the saver's in the background, the caller's in the foreground.
class SaveHousekeeping {
 public:
  // Arguments must outlive this object. `staging`, `lock`: null if the job has none on this rank.
  SaveHousekeeping(Storage& storage, Storage* staging, FolderLock* lock,
                   const CheckpointManagerOptions& options, bool is_rank_0)
      : storage_(storage),
        staging_(staging),
        lock_(lock),
        options_(options),
        is_rank_0_(is_rank_0),
        retention_(storage, options.keep) {}

  // Returns hooks that call this object.
  SaveHooks Hooks();

  // Reports the commit, and deletes what the new checkpoint makes superfluous. An error becomes a
  // note of the report: the checkpoint is complete.
  void AfterCommit(SaveReport& report);

 private:
  // Returns the root of a save that rank 0 is about to write. Empties a rolling slot. If the disk
  // is too full, deletes checkpoints that retention allows.
  absl::StatusOr<std::string> ChooseRoot(const PlannedSave& planned);
  absl::Status CleanUp(SaveReport& report);

  Storage& storage_;
  Storage* const staging_;
  FolderLock* const lock_;
  const CheckpointManagerOptions& options_;
  const bool is_rank_0_;
  Retention retention_;
  std::string room_note_;  // what was deleted to make room for the save in progress
  PlanCache plan_cache_;
};

// Returns an error in a job that has lost the folder, which may belong to another job by now.
// `lock` may be null.
inline absl::Status ConfirmFolder(FolderLock* lock) {
  return lock != nullptr ? lock->Confirm() : absl::OkStatus();
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVE_HOUSEKEEPING_H_
