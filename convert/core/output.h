#ifndef TESSERA_CONVERT_CORE_OUTPUT_H_
#define TESSERA_CONVERT_CORE_OUTPUT_H_

// Writing of another framework's files from a checkpoint of any topology, in bounded memory.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/digests.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "layout/box.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

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
