#ifndef TESSERA_CONVERT_CORE_READ_DIGESTS_H_
#define TESSERA_CONVERT_CORE_READ_DIGESTS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/output_file.h"
#include "convert/core/progress.h"

namespace tessera::ckpt::convert {

using DigestsByName = std::map<std::string, LogicalDigest>;

struct ReadDigestsOptions {
  int io_threads = 4;
  ProgressFunction progress;
};

// Computes the digests of a checkpoint's tensors, aliases included, from its files, and verifies
// the checksums that the manifest has. Reads every file once; memory: the buffers of a Scanner.
//
// Errors: those of the storage; DataLoss for damage of the files.
absl::StatusOr<DigestsByName> ReadDigests(const Checkpoint& source,
                                          const ReadDigestsOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_READ_DIGESTS_H_
