#ifndef TESSERA_CHECKPOINT_CONVERT_OUTPUT_H_
#define TESSERA_CHECKPOINT_CONVERT_OUTPUT_H_

// Files of another framework, written from a checkpoint of any topology in bounded memory.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/convert/foreign_checkpoint.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// A committed checkpoint. Both must outlive the call.
struct OutputSource {
  Storage& storage;
  std::string directory;
  const Manifest& manifest;  // ReadManifest(storage, directory)
};

// A matrix of a new file.
struct OutputTensor {
  std::string name;         // in the new files, as their reader calls it
  std::string source_name;  // in the source: the same, or the tensor that it is tied to
  Role role = WEIGHT;
  DType dtype = DTYPE_UNSPECIFIED;  // in the file
  Shape shape;                      // of the logical tensor
  uint64_t offset_bytes = 0;        // in the file
  int64_t elements = 0;             // in the file, padding included; padding is zero
  // The pieces of the logical tensor that elements [begin, end) of the file's tensor are. Offsets
  // count from the element `begin`.
  std::function<std::vector<StoredPiece>(int64_t begin, int64_t end)> pieces;
};

// Bytes of a new file that belong to no tensor.
struct OutputBytes {
  uint64_t offset_bytes = 0;
  std::string bytes;
};

struct OutputFile {
  std::string name;
  std::string header;  // the bytes before the first tensor: all of a file without tensors
  uint64_t size_bytes = 0;
  std::vector<OutputTensor> tensors;
  // Readers find no checkpoint without this file, which has no tensors: in places where a folder
  // does not get its name when it is complete, it is created last.
  bool commits = false;
  // May be null. Called when all tensors are written, with the CRC-32 (that of zip) of the bytes of
  // each: what else the file has, between the tensors and after them.
  std::function<std::vector<OutputBytes>(std::span<const uint32_t> crc32)> finish;
};

struct OutputOptions {
  int io_threads = 4;
  // May be null. Called with the bytes done and in total.
  std::function<void(uint64_t, uint64_t)> progress;
};

using DigestsByName = std::map<std::string, LogicalDigest>;

// Writes the files into a directory, which must exist, syncs them and the directory, and returns
// the digests of the tensors as they were written, by their names in the files. Memory: one block
// of a tensor, of about 32 MiB, and the buffers of a load.
//
// Errors: those of the storages; FailedPrecondition for a tensor that the source does not have with
// that shape, or has in a dtype that is not converted; DataLoss for damage of the source.
absl::StatusOr<DigestsByName> WriteOutput(const OutputSource& source,
                                          const std::vector<OutputFile>& files, Storage& storage,
                                          std::string_view directory, const OutputOptions& options);

// The digests of a checkpoint's tensors, read from its files, by name; of aliases, too.
absl::StatusOr<DigestsByName> ReadDigests(const OutputSource& source, const OutputOptions& options);

// A row-major tensor.
std::vector<StoredPiece> RowMajorPieces(const Shape& shape, size_t element_bytes, int64_t begin,
                                        int64_t end);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_OUTPUT_H_
