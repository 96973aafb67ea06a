#ifndef TESSERA_CONVERT_CORE_OUTPUT_H_
#define TESSERA_CONVERT_CORE_OUTPUT_H_

// Writing of another framework's files from a checkpoint of any topology, in bounded memory.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_progress.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/scan/scan.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "layout/box.h"
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

uint64_t BytesOfFiles(const Manifest& manifest);

// Computes the digests of a checkpoint's tensors, aliases included, from its files, and verifies
// the checksums that the manifest has. Reads every file once; memory: the buffers of a Scanner.
//
// Errors: those of the storage; DataLoss for damage of the files.
absl::StatusOr<DigestsByName> ReadDigests(const Checkpoint& source, const IoOptions& options);

// Writes the files into a directory, which must exist, and syncs them and the directory. Returns
// the digests of the tensors as they were written, by their names in the files.
//
// Up to three threads work at once, each on a block of 8 MiB that it reads while its last one is
// written. After the first error no further block begins, and all threads have ended on return.
// Memory: for each thread two blocks, 8 MiB for reading, and a tensor of up to 32 MiB if its
// elements are rearranged; 24 MiB for data that blocks share.
//
// Errors: those of the storages, DataLoss for damage of the source, and
// - FailedPrecondition for a tensor that the source lacks, or has with another shape or in a dtype
//   that is not converted, and for an element beyond the range of the dtype in the file;
// - Internal, before the file is created, for tensors that are not in the order of their offsets.
absl::StatusOr<DigestsByName> WriteOutput(const Checkpoint& source,
                                          const std::vector<OutputFile>& files, Storage& storage,
                                          std::string_view directory, const IoOptions& options);

// Returns OutputTensor::pieces of a row-major tensor.
std::function<std::vector<StoredPiece>(int64_t begin, int64_t end)> RowMajorPieces(Shape shape,
                                                                                   DType dtype);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OUTPUT_H_
