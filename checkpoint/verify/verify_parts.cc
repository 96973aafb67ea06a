#include "checkpoint/verify/verify_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/pieces.h"

namespace tessera::ckpt {
namespace {

constexpr int kRereads = 2;

// The file has checksums, and the size that the manifest states.
absl::Status VerifyChunk(const ReadableFile& file, const Manifest& manifest, int index,
                         uint64_t chunk) {
  const DataFile& description = manifest.files(index);
  const uint64_t begin = chunk * description.chunk_bytes();
  const uint64_t end =
      std::min<uint64_t>(begin + description.chunk_bytes(), description.size_bytes());
  TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(end - begin));
  uint32_t found = 0;
  for (int again = 0; again <= kRereads; ++again) {
    TESSERA_RETURN_IF_ERROR(file.ReadOriginalAt(begin, buffer.span()));
    found = Crc32c(buffer.span());
    if (found == description.chunk_crc32c(static_cast<int>(chunk))) return absl::OkStatus();
  }
  return absl::DataLossError(
      ToString(DescribeChecksumError(manifest, FileMap(manifest), index, chunk, found)));
}

}  // namespace

absl::Status VerifyParts(Storage& storage, std::string_view checkpoint_dir,
                         const Manifest& manifest, const std::vector<DamagedPart>& parts) {
  for (int f = 0; f < manifest.files_size(); ++f) {
    const DataFile& description = manifest.files(f);
    const uint64_t chunk_bytes = description.chunk_bytes();
    if (!HasChecksums(description) || chunk_bytes > kMaxChunkBytes) continue;
    std::unique_ptr<ReadableFile> file;
    for (const DamagedPart& part : parts) {
      const uint64_t end = std::min<uint64_t>(part.end_bytes, description.size_bytes());
      if (part.file != description.path() || part.begin_bytes >= end) continue;
      if (file == nullptr) {
        TESSERA_ASSIGN_OR_RETURN(file, storage.Open(JoinPath(checkpoint_dir, part.file)));
      }
      for (uint64_t chunk = part.begin_bytes / chunk_bytes; chunk * chunk_bytes < end; ++chunk) {
        TESSERA_RETURN_IF_ERROR(VerifyChunk(*file, manifest, f, chunk));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
