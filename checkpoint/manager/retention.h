#ifndef TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
#define TESSERA_CHECKPOINT_MANAGER_RETENTION_H_

// Which checkpoints a run keeps: the policies, which are pure, without I/O and without a clock,
// Retention, which deletes by them, and SaveHousekeeping, which calls it at each save.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "storage/lock/folder_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

struct RetentionCandidate {
  int64_t step = 0;
  bool rolling = false;
  absl::Time saved_at = absl::InfiniteFuture();
  std::optional<double> validation_loss;  // measured at this step
  std::string validation_data;            // kValidationData
  bool intact = true;                     // false: damaged, or it cannot be read
  // False if the checkpoint is not intact, its state not finite, or its loss not plausible.
  bool good = true;
  bool proven = true;  // a later step was healthy (RetentionOptions::awaits_healthy_step)
};

// "The newest good ones" are those down to the newest one that is also proven.

// Returns the indices of the checkpoints to delete, ascending; never of the newest, nor of the
// newest good ones. `candidates` are permanent and ascend by step. Only intact ones
// are of RetentionOptions::newest; a damaged one stays while fewer intact ones than that are newer.
std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now);

// Returns the indices of the checkpoints that may be deleted if the save of `coming` lacks space,
// in the order of deletion:
// 1. damaged permanent ones, if the policy deletes any at all;
// 2. permanent ones that the policy gives up for the save anyway;
// 3. rolling ones;
// 4. permanent ones that the policy gives up if the newest good checkpoint and the coming one are
//    taken as permanent.
//
// `candidates`, of both kinds, ascend by step. Never returns the newest good ones, so that
// until the save is complete, the run can lose only the steps since then. Empty if none is good.
std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now);

// A save that is about to begin.
struct ComingSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t needed_bytes = 0;
};

// Deletes checkpoints by a policy. Manifests of permanent checkpoints are read once after a save;
// those that are older than all that a policy of RetentionOptions::newest alone keeps, never.
// Damaged ones are read again each time, since they may become whole. A checkpoint whose manifest
// cannot be read, for another reason than damage, stays, and is read again the next time. Symbolic
// links, directories that cannot be listed, and quarantined checkpoints are ignored. A checkpoint
// that is being read (read_lock.h) stays until the next time, as does one that another process has
// overwritten since its manifest was read. Each checkpoint is uncommitted before its files are
// deleted, so that a crash halfway leaves none that looks complete. One thread at a time.
//
// The checkpoint of a step that was just saved is taken as intact, then and later, if its manifest
// can be read. The save has checked that its files are there and, on the ranks that wrote them,
// their sizes; other ranks would wait while rank 0 looks at thousands of files. So a file that
// looks shorter from rank 0 than to its writer is found by a load, by VerifyCheckpoint() and by the
// first save of the next job, but not here.
class Retention {
 public:
  // The storage must outlive this object.
  Retention(Storage& storage, const RetentionOptions& options);

  // With RetentionOptions::awaits_healthy_step, proves the checkpoints of earlier steps than this
  // one, which was healthy or at which the job begins, and no others. Any thread.
  void NoteHealthy(int64_t step) {
    if (options_.awaits_healthy_step) healthy_step_ = step;
  }
  bool IsProven(int64_t step) const { return step < healthy_step_; }

  // Deletes the permanent checkpoints that the policy does not keep, and the remains of incomplete
  // saves that are older than the newest checkpoint; but never the checkpoint of `saved_step`, the
  // step that was just saved. Tries all, and returns the first error, also of a checkpoint that
  // could not be read.
  absl::Status Apply(absl::Time now, std::optional<int64_t> saved_step = std::nullopt);

  // Makes space for a save if the storage lacks it: deletes checkpoints that ChooseToMakeRoom()
  // names until there is room, or none if all of them are too small. Returns the deleted
  // directories. `undeleted`, unless null, receives the first error of a deletion if it is OK.
  absl::StatusOr<std::vector<std::string>> MakeRoom(const ComingSave& coming, absl::Time now,
                                                    absl::Status* undeleted = nullptr);

  // Notes that the storage has refused this save, or a part of it, for lack of space. Unless the
  // storage tells that it has less, what the folder held and the save needs is then a limit for
  // MakeRoom(). Returns whether MakeRoom() would make room for the save.
  bool NoteRefused(const ComingSave& refused, absl::Time now);
  // Notes that the save for which MakeRoom() was called last is committed. After the first one that
  // kept to a limit, the next one tests it, since a lack may pass: if that is refused, all keep to
  // the limit, else none.
  void NoteCommitted();

 private:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  // A checkpoint, as described by its manifest and the sizes of its files.
  struct Described {
    RetentionCandidate candidate;
    absl::Status unknown;  // an error other than damage: only the step is known
    std::string identity;  // ManifestIdentity() before the manifest was read
    uint64_t bytes = 0;
  };

  // Reads the header of the manifest only: the candidate has nothing but its step.
  Described Identify(const CheckpointInfo& checkpoint);
  // Looks at the size and header of each data file, unless the checkpoint was just saved.
  Described Describe(const CheckpointInfo& checkpoint, bool is_own = false);
  Described DescribeOnce(const CheckpointInfo& checkpoint, bool is_own = false);
  // The checkpoints that MakeRoom() may delete, in this order, and the bytes of all of them.
  struct Droppable {
    std::vector<std::pair<CheckpointInfo, Described>> checkpoints;
    uint64_t bytes = 0;
    uint64_t held_bytes = 0;  // of these and all others
  };
  absl::StatusOr<Droppable> FindDroppable(const ComingSave& coming, absl::Time now);
  // Returns the bytes that the save lacks in a folder that holds so many.
  uint64_t Lacking(const ComingSave& coming, uint64_t held_bytes) const;

  Storage& storage_;
  const std::unique_ptr<Removal> removal_;
  const RetentionOptions options_;
  std::atomic<int64_t> healthy_step_;
  uint64_t limit_bytes_ = kNoLimit;  // to what the folder holds, as refusals tell
  bool at_limit_ = false;            // the save for which MakeRoom() was called last
  bool tests_limit_ = false;         // at the next save that it concerns
  bool limit_is_proven_ = false;
  std::map<std::string, Described> described_;  // permanent ones, by directory
};

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
        retention_(storage, options.keep),
        prunes_first_(options.keep.awaits_healthy_step) {}

  // Returns hooks that call this object.
  SaveHooks Hooks();

  // Reports the commit, and deletes what the new checkpoint makes superfluous. An error becomes a
  // note of the report: the checkpoint is complete.
  void AfterCommit(SaveReport& report);

  // Remembers the checkpoint from which the job continues, so that no save reads it again.
  void NoteLoaded(const Checkpoint& checkpoint) {
    known_good_ = IsHealthy(checkpoint.manifest()) ? checkpoint.directory() : "";
  }
  // Forgets that checkpoint: it may have been quarantined.
  void ForgetLoaded() { known_good_.clear(); }
  void NoteHealthy(int64_t step) { retention_.NoteHealthy(step); }

 private:
  // Returns the root of a save that rank 0 is about to write. Empties a rolling slot. If the disk
  // is too full, deletes checkpoints that retention allows.
  absl::StatusOr<std::string> ChooseRoot(const PlannedSave& planned);
  absl::Status CleanUp(SaveReport& report);
  // Returns the error with what was deleted, and marked if the next save makes room.
  absl::Status AfterFailure(absl::Status error);

  Storage& storage_;
  Storage* const staging_;
  FolderLock* const lock_;
  const CheckpointManagerOptions& options_;
  const bool is_rank_0_;
  Retention retention_;
  ComingSave coming_;  // the save in progress
  bool coming_is_healthy_ = false;
  std::string known_good_;  // the last rolling checkpoint or the loaded one, if healthy
  std::string note_;        // on what was deleted, or could not be, for the save in progress
  bool prunes_first_;       // checkpoints may have become superfluous since the last commit
  PlanCache plan_cache_;
};

// Returns an error if the job has lost the folder to another one. `lock` may be null.
inline absl::Status ConfirmFolder(FolderLock* lock) {
  return lock != nullptr ? lock->Confirm() : absl::OkStatus();
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RETENTION_H_
