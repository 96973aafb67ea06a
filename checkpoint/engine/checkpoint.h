#ifndef TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_

// The public interface of the library: save, load in place, list, verify. Directories are paths inside a Storage.

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

// "step-00000042"; steps sort as numbers whatever their width.
std::string StepDirectoryName(int64_t step);

// What a checkpoint says besides its tensors. `tensors` and `files` must be empty: the save fills them in.
using Metadata = Manifest;

struct SaveOptions {
  uint32_t checksum_chunk_bytes = 1 << 20;
  uint64_t max_file_bytes = uint64_t{4} << 30;  // a rank's data goes to more files beyond this
  int io_threads = 2;
  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks
};

struct SaveReport {
  uint64_t bytes_written = 0;
  double seconds = 0;
};

// Saves a checkpoint under root/step-N. Collective over `group`. The new checkpoint exists when, and only when, its manifest is
// committed; an older checkpoint is never touched. A half-written directory of the same step is removed first; a committed one
// is answered with AlreadyExists.
absl::StatusOr<SaveReport> Save(Storage& storage, std::string_view root, const Metadata& metadata,
                                const StateDict& state, ProcessGroup& group,
                                const SaveOptions& options);

struct LoadOptions {
  bool verify_checksums = true;
  bool allow_missing = false;     // wanted, not saved: left as it is, and reported
  bool allow_unexpected = false;  // saved, not wanted: ignored, and reported
  // Fill a WEIGHT that was not saved from its MASTER_WEIGHT, converting the dtype.
  bool weights_from_master = true;
  // Convert between floating dtypes where saved and wanted differ; refused otherwise.
  bool convert_dtype = true;
  int io_threads = 2;
  absl::Duration deadline = absl::Minutes(10);
};

struct LoadReport {
  std::vector<std::string> missing;     // tensor names
  std::vector<std::string> unexpected;  // tensor names
  std::vector<std::string> from_master;
  uint64_t bytes_read = 0;
  double seconds = 0;
};

// Reads and checks the manifest of a committed checkpoint. Errors: NotFound (listing what is there), DataLoss.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, std::string_view checkpoint_dir);

// Loads into the buffers of `state`. Compares everything first and reports every mismatch at once (FailedPrecondition); nothing is
// changed unless the comparison passed. Collective over `group`.
absl::StatusOr<LoadReport> Load(Storage& storage, std::string_view checkpoint_dir, StateDict& state,
                                ProcessGroup& group, const LoadOptions& options);

struct CheckpointInfo {
  int64_t step = 0;
  std::string directory;  // under root
};

// Committed checkpoints under `root`, ascending by step. Half-written directories are not among them.
absl::StatusOr<std::vector<CheckpointInfo>> List(Storage& storage, std::string_view root);

struct Damage {
  std::string file;
  uint64_t offset_bytes = 0;
  std::string tensor;  // empty: not inside a tensor
  std::string message;
};

struct VerifyReport {
  std::vector<Damage> damage;  // empty: everything is as it was written
  uint64_t bytes_read = 0;
  double seconds = 0;
};

// Reads every byte; checks checksums, headers, coverage and, where asked, logical digests. `progress` (may be null) is told
// bytes done and in all, from one thread at a time.
absl::StatusOr<VerifyReport> Verify(Storage& storage, std::string_view checkpoint_dir, bool digests,
                                    int io_threads,
                                    const std::function<void(uint64_t, uint64_t)>& progress);

// Deletes the oldest checkpoints beyond `keep`, the newest never. Each is uncommitted first, so that a crash halfway leaves no
// checkpoint that looks whole. Also removes half-written directories older than the newest committed one.
absl::Status Prune(Storage& storage, std::string_view root, int keep);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_CHECKPOINT_H_
