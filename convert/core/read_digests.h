#ifndef TESSERA_CONVERT_CORE_READ_DIGESTS_H_
#define TESSERA_CONVERT_CORE_READ_DIGESTS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/format/digest.h"
#include "convert/core/output_file.h"
#include "convert/core/progress.h"

namespace tessera::ckpt::convert {

using DigestsByName = std::map<std::string, LogicalDigest>;

struct ReadDigestsOptions {
  int io_threads = 4;
  ProgressFunction progress;
};

// The digests of a checkpoint's tensors, read from its files, by name; of aliases, too. Checksums
// are verified where the manifest has them.
//
// Every file is read once, from front to back, in pieces of 4 MiB or one checksum chunk, which are
// digested where they were read to: nothing is copied. Memory: such a piece for each thread, 64 MiB
// at most or one chunk. After the first error no further piece begins.
//
// Errors: those of the storage; DataLoss for damage of the files.
absl::StatusOr<DigestsByName> ReadDigests(const OutputSource& source,
                                          const ReadDigestsOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_READ_DIGESTS_H_
