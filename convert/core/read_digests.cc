#include "convert/core/read_digests.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/scan/scan.h"

namespace tessera::ckpt::convert {
namespace {

constexpr int kOpenFiles = 256;

}  // namespace

absl::StatusOr<DigestsByName> ReadDigests(const Checkpoint& source,
                                          const ReadDigestsOptions& options) {
  const Manifest& manifest = source.manifest();
  TESSERA_RETURN_IF_ERROR(CheckIoThreads(options.io_threads));
  TESSERA_RETURN_IF_ERROR(ValidateCoverage(manifest));
  TensorDigests sums(manifest, FileMap(manifest), options.io_threads);
  if (!sums.cut().empty()) return absl::DataLossError(ToString(sums.cut().front().second));
  uint64_t total = 0;
  for (const DataFile& file : manifest.files()) total += file.size_bytes();
  Progress progress(options.progress, total);
  ScanBuffers buffers;
  for (int first = 0; first < manifest.files_size(); first += kOpenFiles) {
    std::vector<uint32_t> files(std::min(kOpenFiles, manifest.files_size() - first));
    std::iota(files.begin(), files.end(), first);
    Scanner scanner(source.storage(), source.directory(), manifest,
                    {.io_threads = options.io_threads});
    TESSERA_RETURN_IF_ERROR(scanner.Open(files));
    TESSERA_RETURN_IF_ERROR(scanner.Run(
        scanner.WholeFiles(),
        [&](int worker, const FilePiece& chunk, const std::byte* data) {
          sums.Add(worker, chunk, data);
          progress.Advance(chunk.size());
          return absl::OkStatus();
        },
        &buffers));
  }
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
