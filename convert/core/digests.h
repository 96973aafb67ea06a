#ifndef TESSERA_CONVERT_CORE_DIGESTS_H_
#define TESSERA_CONVERT_CORE_DIGESTS_H_

// Reading all files of a checkpoint, and the digests of its tensors.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_progress.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/scan/scan.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

using DigestsByName = std::map<std::string, LogicalDigest>;

struct IoOptions {
  int io_threads = 4;
  // Whether WriteOutput() makes finite elements infinite that the dtype in the file cannot hold.
  bool allow_overflow = false;
  ByteProgress::Function progress;  // called with the bytes done and in total; may be null
};

// Reads the files of a manifest, not too many of them open at once; with a null function, only
// opens them, which compares their sizes.
absl::Status ScanFiles(Storage& storage, std::string_view directory, const Manifest& manifest,
                       const ScanOptions& options, const ChunkFunction& function);

// Computes the digests of a checkpoint's tensors, aliases included, from its files, and verifies
// the checksums that the manifest has. Reads every file once; memory: the buffers of a Scanner.
//
// Errors: those of the storage; DataLoss for damage of the files.
absl::StatusOr<DigestsByName> ReadDigests(const Checkpoint& source, const IoOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_DIGESTS_H_
