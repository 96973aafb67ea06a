#ifndef TESSERA_CHECKPOINT_SCAN_VERIFY_H_
#define TESSERA_CHECKPOINT_SCAN_VERIFY_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/damage.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/saved_checkpoints.h"
#include "checkpoint/include/verify_options.h"
#include "storage/storage.h"

namespace tessera::ckpt {

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

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SCAN_VERIFY_H_
