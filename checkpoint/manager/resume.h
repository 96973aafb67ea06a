#ifndef TESSERA_CHECKPOINT_MANAGER_RESUME_H_
#define TESSERA_CHECKPOINT_MANAGER_RESUME_H_

// Resuming of a restarted job from its latest valid checkpoint: the choice of the checkpoint, the
// case that a rank cannot load it, and the quarantine of skipped ones.
//
//   const auto load = [&](const Checkpoint& checkpoint) {
//     return checkpoint.Load(state, {.group = &group}).status();
//   };
//   const auto resumed = ResumeFromLatest(storage, group, {}, load);
//   if (!resumed.ok()) ...end the job: nothing in the storage has changed...
//   if (!resumed->checkpoint.has_value()) ...begin at step 0...

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/process_group.h"
#include "storage/lock/folder_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The rules by which a job resumes, from its program and its manager.
struct ResumeRules {
  // Whether to rename skipped checkpoints, which would be in the way of coming saves: from
  // "step-00000500" to "step-00000500.damaged", or to "step-00000500.damaged-2" and so on if that
  // exists. Readers no longer take them for checkpoints, but all of their files remain. False:
  // leaves them as they are, for a job that does not save.
  bool quarantine = true;
  std::optional<int64_t> step;  // as ResumeOptions, both
  bool ignore_no_valid = false;
  // The lock of the folder, on rank 0: nothing is renamed if it was lost meanwhile. May be null.
  FolderLock* lock = nullptr;
  absl::Duration timeout = absl::Minutes(10);  // for each wait on other ranks
};

// Loads, on all ranks, the newest committed checkpoint, permanent or rolling, that is healthy and
// that every rank reads without damage. `load` is called with one checkpoint after the other,
// newest first, until it succeeds.
//
// Rank 0 decides, and skips checkpoints that it finds damaged or diverged. If `load` fails because
// of damage, the status carries the place (FindDamagedParts() in checkpoint/internal/damage.h), and
// rank 0 reads these bytes itself. If they are damaged there, too, the checkpoint is skipped. If
// not, the call fails. Other errors of `load`, such as those of a storage that does not reply,
// never lead to another checkpoint.
//
// In the end, every other rank reads the parts that rank 0 has found damaged: the manifest, the
// sizes and headers of the files, and the bytes in which loading ranks have found damage. If all of
// them are intact there, the call fails, so that no rank condemns a checkpoint alone. A diverged
// checkpoint needs no second reader, since its manifest says so.
//
// Nothing in the storage changes before all ranks have loaded a checkpoint (except for saves that
// were being discarded when their process died: SettleDiscarded()). Then rank 0 quarantines the
// newer checkpoints that were skipped. Older ones, and their contents, are not touched.
//
// Errors, the same on every rank and with nothing changed except by the last one:
//   FailedPrecondition  there are checkpoints, or there have been and they are quarantined, and
//                       none is valid. Lists them. Never with ignore_no_valid, which quarantines
//                       them and begins without one.
//   Unavailable         ranks see different storages: one reports damage in what rank 0 reads well,
//                       or reads well what rank 0 finds damaged, or rank 0 finds nothing where
//                       another rank finds checkpoints. Names the ranks and what they saw.
//   the error of `load` if it does not report damage
//   the storage's       if rank 0 cannot list or read, or another rank cannot read what rank 0
//                       finds damaged
//   the lock's          if another job has taken it over
//   DeadlineExceeded, Unavailable from the group
//   the storage's       if a skipped checkpoint cannot be renamed; others may have been
//
// `storage` is searched and changed on rank 0; elsewhere it serves only to confirm that a
// checkpoint is damaged, or that no checkpoint exists. Null on a rank that has no such place, which
// is Unavailable, on every rank, if there is something to load. Starts no thread; `load` is called
// on the caller's.
//
// Collective over `group`, with the same options on every rank. No other process may save there
// (folder_lock.h). While `load` runs, the checkpoint is marked as being read (read_lock.h). Cost:
// three agreements, and two for each checkpoint that fails to load. Bytes on the wire: the
// manifest, and the reasons why others were skipped, to every rank.
absl::StatusOr<ResumeResult> ResumeFromLatest(const std::shared_ptr<Storage>& storage,
                                              ProcessGroup& group, const ResumeRules& rules,
                                              const LoadOnThisRank& load);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_RESUME_H_
