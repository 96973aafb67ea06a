#ifndef TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_

// The public interface of the library: save, load in place, list, verify. Directories are paths
// inside a Storage.
//
// Signals: the library installs no handler and changes no signal mask. Its threads inherit the mask
// of the thread that calls it: a program that wants no handler to run on them blocks the signals
// there before it calls.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/engine/process_group.h"
#include "checkpoint/engine/state_dict.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

class PlanCache;  // save_agreement.h

// "step-00000042"; steps sort as numbers whatever their width.
std::string StepDirectoryName(int64_t step);

// What a checkpoint says besides its tensors. `tensors` and `files` must be empty: the save fills
// them in.
using Metadata = Manifest;

struct SaveOptions {
  // Layout of the files. A checksum chunk is the least that a partial read fetches; 8 divides it.
  uint32_t checksum_chunk_bytes = 1 << 20;
  uint64_t max_file_bytes = uint64_t{4} << 30;  // a rank's data goes to more files beyond this

  // Resources. Staging and writing happen in the same threads, so that more threads than cores keep
  // the disk busy.
  int io_threads = 4;
  uint64_t staging_bytes = uint64_t{64} << 20;  // at most, or one chunk

  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks

  // The plan of earlier saves of the same group, on every rank or on none; null: every save is
  // planned anew.
  PlanCache* plan_cache = nullptr;

  // Called on every rank that set it, by the thread that saves, once this rank's data is durable and
  // before the checkpoint is committed: makes durable what must not be missing where the checkpoint
  // is there, a log for example. Its error is the save's. Null: nothing.
  std::function<absl::Status()> before_commit;
};

struct SaveReport {
  std::string directory;       // of the new checkpoint, inside the storage
  uint64_t bytes_written = 0;  // data files, all ranks
  double seconds = 0;          // from the beginning to the commit
  // Processor time for copies, checksums and writes, of the threads that the save runs here.
  double processor_seconds = 0;

  // Of asynchronous saves.
  double copied_seconds = 0;   // from the beginning until this process's state was copied
  double blocked_seconds = 0;  // this process's threads spent in Start() and waiting for the copy

  // What did not go as well as it could, though the checkpoint is whole: that the copy of an
  // asynchronous save did not fit, and why; what on_committed adds. Empty: nothing.
  std::string note;
};

// Saves a checkpoint to root/step-N, where N is metadata.trainer().step(), the same on every rank;
// the rest of `metadata` counts on rank 0. The new checkpoint exists when, and only when, its
// manifest is committed, and no file of a committed checkpoint is ever touched. A half-written
// directory of the same step is removed first.
//
// Every rank returns the same. Errors, each with nothing committed: InvalidArgument (options,
// metadata, state: every problem listed, a tensor that the ranks together do not cover included),
// AlreadyExists (that step is committed), ResourceExhausted (checked before anything is written,
// where the storage can tell), whatever the storage answers, DeadlineExceeded or Unavailable from
// the group. One rank's error is everybody's, with the rank's number where there are several.
//
// Collective over `group`. State is read, not changed. Memory: staging_bytes per process plus the
// plan. Cost: each byte of the state passes once through the cache (copy, digest, checksum) and
// goes to the disk past the page cache.
absl::StatusOr<SaveReport> Save(Storage& storage, std::string_view root, const Metadata& metadata,
                                const StateDict& state, ProcessGroup& group,
                                const SaveOptions& options);

struct LoadOptions {
  bool verify_checksums = true;
  // Whether what all ranks placed in their memory has the digests that were saved: finds also what
  // happened to the bytes after they were checked, and what went to the wrong place. Taken on the
  // way: a load from a local disk by four ranks of two cores (GPT-2 124M) took 5 % longer where
  // each rank holds a part of the state, and 20 % where each holds all of it. Where elements of a
  // row do not lie side by side in memory, one pass over it afterwards.
  bool verify_digests = false;
  bool allow_missing = false;     // wanted, not saved: left as it is, and reported
  bool allow_unexpected = false;  // saved, not wanted: ignored, and reported
  // Fill a WEIGHT that was not saved from its MASTER_WEIGHT, converting the dtype.
  bool weights_from_master = true;
  // Convert between floating dtypes where saved and wanted differ; refused otherwise.
  bool convert_dtype = true;
  int io_threads = 4;
  uint64_t staging_bytes = uint64_t{64}
                           << 20;  // at most, or one chunk; seven where ranks share their reading
  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks
};

struct LoadReport {
  std::vector<std::string> missing;     // names: wanted on this rank, not saved
  std::vector<std::string> unexpected;  // names: saved, wanted by no rank
  std::vector<std::string>
      from_master;  // names: weights of this rank that came from their master weights
  // Whole checksum chunks. What several ranks need is read by one of them: over all ranks,
  // bytes_read is each needed byte once.
  uint64_t bytes_needed = 0;    // what this rank would have read alone
  uint64_t bytes_read = 0;      // by this rank, for itself and others
  uint64_t bytes_received = 0;  // from other ranks, without what of their chunks is not wanted here
  uint64_t bytes_sent = 0;
  uint64_t buffer_bytes = 0;  // memory that the exchange took; 0 where nothing was shared
  // Of verify_digests, over all ranks.
  int64_t digests_verified = 0;                 // tensors
  std::vector<std::string> digests_unverified;  // names, with why nothing can be said
  double verify_seconds = 0;
  double seconds = 0;  // with all of it
};

// Reads and checks the manifest of a committed checkpoint. Errors: NotFound (listing what is
// there), DataLoss, also where the directory is named as the checkpoint of another step; a
// directory with a name of another kind can hold any.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, std::string_view checkpoint_dir);

// Loads into the buffers of `state`, under whatever sharding they have: the saved one does not
// matter. Compares everything first and reports the mismatches of all ranks at once, the first ten
// in words. Aliases are resolved on both sides.
//
// Errors: InvalidArgument (the state dict itself), NotFound (listing the checkpoints that are
// there), FailedPrecondition (mismatches: missing, unexpected, role, shape, dtype, coverage),
// DataLoss (naming file, offset, tensor, expected and found). Up to and including a missing or
// truncated file nothing is changed. A checksum error can come after some buffers were filled:
// every byte is verified before it is placed, but other tensors may already be new. The state is
// then to be discarded or loaded again. So it is after a digest that differs.
//
// Collective over `group`; every rank returns the same status. Memory: staging_bytes per process
// plus the plan. Cost: only checksum chunks that hold wanted bytes are read, each by one of the
// ranks that want any of it, which hands the others their part while it reads on.
absl::StatusOr<LoadReport> Load(Storage& storage, std::string_view checkpoint_dir, StateDict& state,
                                ProcessGroup& group, const LoadOptions& options);

struct CheckpointInfo {
  int64_t step = 0;
  std::string directory;  // under root
};

// A directory of a step that cannot be looked into: nobody knows whether it holds a checkpoint.
struct UnreadableCheckpoint {
  int64_t step = 0;
  std::string directory;  // under root
  absl::Status status;
};

// Committed checkpoints under `root`, ascending by step, which is that of the directory's name: no
// manifest is read. Half-written directories are not among them. Neither are unreadable ones, which
// `unreadable` (may be null) receives: one bad directory does not make the others useless.
absl::StatusOr<std::vector<CheckpointInfo>> List(
    Storage& storage, std::string_view root,
    std::vector<UnreadableCheckpoint>* unreadable = nullptr);
// Directories of saves that were started but not committed.
absl::StatusOr<std::vector<CheckpointInfo>> ListUncommitted(Storage& storage,
                                                            std::string_view root);

struct Damage {
  std::string file;
  uint64_t offset_bytes = 0;
  std::string tensor;  // empty: not inside a tensor
  std::string message;
};

struct VerifyReport {
  std::vector<Damage> damage;    // empty: everything is as it was written
  int64_t digests_verified = 0;  // tensors whose contents have the digest that the manifest says
  int64_t digests_missing = 0;   // tensors for which it says none
  uint64_t bytes_read = 0;
  double seconds = 0;
};

// Reads every byte; checks checksums, headers, coverage and, where asked, logical digests.
// `progress` (may be null) is told bytes done and in all, from one thread at a time.
absl::StatusOr<VerifyReport> Verify(Storage& storage, std::string_view checkpoint_dir, bool digests,
                                    int io_threads,
                                    const std::function<void(uint64_t, uint64_t)>& progress);

// Deletes the oldest checkpoints beyond `keep`, the newest never. Each is uncommitted first, so
// that a crash halfway leaves no checkpoint that looks whole. Also removes half-written directories
// older than the newest committed one. Symbolic links and unreadable directories are left alone and
// do not count. Returns the first error after having tried all.
absl::Status Prune(Storage& storage, std::string_view root, int keep);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_
