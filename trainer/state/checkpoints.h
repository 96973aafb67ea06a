#ifndef TESSERA_TRAINER_STATE_CHECKPOINTS_H_
#define TESSERA_TRAINER_STATE_CHECKPOINTS_H_

// The trainer's side of saving and loading: flags in, calls of the checkpoint library out.
//
// Everything here is collective over a group of ranks. An error on one rank alone is not sent to
// the others: the failing rank must leave the run, so that the others' waits end.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/folder_lock.h"
#include "trainer/state/run_state.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// The ranks of a run, and how long to wait for them.
struct RankGroup {
  ckpt::ProcessGroup& ranks;
  absl::Duration deadline = absl::Minutes(10);
};

// A committed checkpoint, chosen and its manifest read; no tensor has been touched.
struct SavedRun {
  std::unique_ptr<ckpt::Storage> storage;
  std::string directory;  // inside the storage; empty: its root
  ckpt::Manifest manifest;
  std::optional<int64_t> older_step;  // of the checkpoint before it in the same folder

  std::string Describe() const { return storage->Describe(directory); }
};

// Adds a workaround for a checkpoint that cannot be read: the one before it.
absl::Status WithOlderStep(const absl::Status& status, const SavedRun& saved);

// The checkpoint that `load` and `ckpt_step` name: `load` itself where it is a checkpoint, under
// whatever name, else the newest in it without ckpt_step. nullopt where `load` is empty, or holds
// no checkpoint and nothing asks for one: neither exit_on_missing_checkpoint nor ckpt_step nor
// finetune. NotFound otherwise, listing what is there; DataLoss for a damaged manifest. Directories
// that cannot be read are passed over, unless nothing is left or ckpt_step names one: then their
// error is returned. Rank 0 looks and reads, and sends the others what it found.
absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const CheckpointConfig& config,
                                                     const RankGroup& group);

// One sentence about what FindSavedRun() skips in `load`: saves of steps after `step` that were
// started but not committed, as a sudden death leaves them, and directories of any step that cannot
// be read. Empty if there is none. For rank 0.
absl::StatusOr<std::string> DescribePassedOver(const CheckpointConfig& config, int64_t step);

// Locks config.save for a run that continues from `step`, until the lock is destroyed; rank 0 holds
// it, others return null, as do all without a folder. FailedPrecondition where nothing can be
// written, where another process saves, and where checkpoints of later steps exist, or may exist in
// a directory that cannot be read, of another run or of a future that this run abandons: they would
// mix with this run's, and a committed checkpoint is never replaced. InvalidArgument where it is
// itself a checkpoint.
absl::StatusOr<std::unique_ptr<FolderLock>> ReserveSaveFolder(const CheckpointConfig& config,
                                                              int64_t step, const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_CHECKPOINTS_H_
