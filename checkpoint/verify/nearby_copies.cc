#include "checkpoint/verify/nearby_copies.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

// Whether the file has the checksums that the manifest has.
bool IsAsDescribed(const ReadableFile& file, const DataFile& described) {
  if (file.size_bytes() != described.size_bytes()) return false;
  const uint64_t chunk_bytes = std::min<uint64_t>(described.chunk_bytes(), described.size_bytes());
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(chunk_bytes);
  if (!buffer.ok()) return false;
  uint64_t begin = 0;
  for (const uint32_t crc : described.chunk_crc32c()) {
    const std::span<std::byte> chunk =
        buffer->span().first(std::min(described.size_bytes() - begin, chunk_bytes));
    if (!file.ReadAt(begin, chunk).ok() || ExtendCrc32c(0, chunk) != crc) return false;
    begin += chunk.size();
  }
  return true;
}

}  // namespace

absl::StatusOr<NearbyCopies> DropDamagedCopies(TieredStorage& storage,
                                               std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(storage, checkpoint_dir));
  NearbyCopies copies;
  for (const DataFile& described : manifest.files()) {
    const std::string path = JoinPath(checkpoint_dir, described.path());
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.staging().Open(path);
    if (!file.ok()) continue;
    if (IsAsDescribed(**file, described)) {
      copies.good_bytes += described.size_bytes();
      continue;
    }
    // Another process of this machine may have been faster.
    const absl::Status deleted = storage.staging().Delete(path);
    if (!absl::IsNotFound(deleted)) TESSERA_RETURN_IF_ERROR(deleted);
    ++copies.dropped_files;
  }
  return copies;
}

}  // namespace tessera::ckpt
