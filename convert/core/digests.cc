#include "convert/core/digests.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/scan/verify.h"

namespace tessera::ckpt::convert {

absl::Status ScanFiles(Storage& storage, std::string_view directory, const Manifest& manifest,
                       const ScanOptions& options, const ChunkFunction& function) {
  constexpr int kOpenFiles = 256;
  ScanBuffers buffers;
  for (int first = 0; first < manifest.files_size(); first += kOpenFiles) {
    std::vector<uint32_t> files(std::min(kOpenFiles, manifest.files_size() - first));
    std::iota(files.begin(), files.end(), first);
    Scanner scanner(storage, directory, manifest, options);
    TESSERA_RETURN_IF_ERROR(scanner.Open(files));
    if (function) TESSERA_RETURN_IF_ERROR(scanner.Run(scanner.WholeFiles(), function, &buffers));
  }
  return absl::OkStatus();
}

absl::StatusOr<DigestsByName> ReadDigests(const Checkpoint& source, const IoOptions& options) {
  const Manifest& manifest = source.manifest();
  TESSERA_RETURN_IF_ERROR(CheckIoThreads(options.io_threads));
  TESSERA_RETURN_IF_ERROR(ValidateCoverage(manifest));
  TensorDigests sums(manifest, FileMap(manifest), options.io_threads);
  if (!sums.cut().empty()) return DataLoss(ToString(sums.cut().front().second));
  ByteProgress progress(options.progress, BytesOfFiles(manifest));
  TESSERA_RETURN_IF_ERROR(ScanFiles(source.storage(), source.directory(), manifest,
                                    {.io_threads = options.io_threads},
                                    [&](int worker, const FilePiece& chunk, const std::byte* data) {
                                      sums.Add(worker, chunk, data);
                                      progress.Add(chunk.size());
                                      return absl::OkStatus();
                                    }));
  DigestsByName digests;
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    digests[manifest.tensors(t).name()] = sums.Sum(t);
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!tensor.alias_of().empty()) digests[tensor.name()] = digests[tensor.alias_of()];
  }
  return digests;
}

}  // namespace tessera::ckpt::convert
