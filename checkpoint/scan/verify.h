#ifndef TESSERA_CHECKPOINT_SCAN_VERIFY_H_
#define TESSERA_CHECKPOINT_SCAN_VERIFY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/verify_options.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/scan/scan.h"
#include "layout/elements/box_runs.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The logical digests of all tensors of a checkpoint, summed up while a scan visits their bytes.
class TensorDigests {
 public:
  TensorDigests(const Manifest& manifest, const FileMap& map, int workers);

  // Returns the shards with elements in two chunks, see FindCutElements(), with the indices of
  // their files. Their elements are not in the sums.
  const std::vector<std::pair<uint32_t, Damage>>& cut() const { return cut_; }

  // Adds the elements of a chunk. Calls with different workers may overlap.
  void Add(int worker, const FilePiece& chunk, const std::byte* data);
  LogicalDigest Sum(int tensor) const;

 private:
  std::vector<std::vector<StoredBox>> boxes_;     // by file, ascending
  std::vector<std::vector<LogicalDigest>> sums_;  // by worker and tensor
  std::vector<std::pair<uint32_t, Damage>> cut_;
};

// Reads every byte of a checkpoint; see Checkpoint::Verify() in checkpoint.h. A damaged manifest is
// in the report, too.
absl::StatusOr<VerifyReport> VerifyCheckpoint(Storage& storage, std::string_view checkpoint_dir,
                                              const VerifyOptions& options = {});

// Verifies the files of a checkpoint whose manifest has been read.
absl::StatusOr<VerifyReport> VerifyFiles(Storage& storage, std::string_view checkpoint_dir,
                                         const Manifest& manifest, const VerifyOptions& options);

// Reads the chunks that hold the named bytes, and compares their checksums. Skips parts of other
// files than the data files, and parts without bytes. Reads a chunk whose checksum is wrong twice
// more, since bytes that were damaged on their way from a remote storage are intact then.
//
// Errors: DataLoss or NotFound, naming the damage; those of the storage. Memory: one chunk.
absl::Status VerifyParts(Storage& storage, std::string_view checkpoint_dir,
                         const Manifest& manifest, const std::vector<DamagedPart>& parts);

// Reads a data file, and returns whether it has the size and the checksums that the manifest
// states. Errors: those of the storage, including NotFound. After an error nothing is known.
absl::StatusOr<bool> HasSavedBytes(Storage& storage, std::string_view checkpoint_dir,
                                   const Manifest& manifest, uint32_t file_index,
                                   ScanBuffers& buffers);

// The result of checking the copies in a staging tier.
struct StagedFiles {
  uint64_t intact_bytes = 0;   // in files that a load reads from there
  int64_t deleted_files = 0;   // of another size, or with a wrong checksum
  int64_t unknown_files = 0;   // that could not be read or deleted, and stay
  absl::Status first_unknown;  // why
};

// Reads the copies of data files in the staging tier, and deletes the damaged ones. Call before a
// load, which then reads the originals instead.
StagedFiles DeleteDamagedStagedFiles(Storage& staging, std::string_view checkpoint_dir,
                                     const Manifest& manifest,
                                     std::span<const uint32_t> file_indices);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SCAN_VERIFY_H_
