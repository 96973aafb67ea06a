#ifndef TESSERA_CHECKPOINT_FORMAT_PIECES_H_
#define TESSERA_CHECKPOINT_FORMAT_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::ckpt {

// The unit of work of saving and loading: large enough that a disk runs at full speed with a few in
// flight, small enough that several fit into the staging limit.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

// The unit of copying, digesting and checksumming: well within the second-level cache. A multiple
// of every element size, as are all chunk sizes, so that no element crosses a boundary.
inline constexpr uint64_t kDigestBlockBytes = 128 << 10;

// Limit of checksum chunks; larger ones would make staging buffers unbounded.
inline constexpr uint64_t kMaxChunkBytes = uint64_t{256} << 20;

// Returns InvalidArgument unless there is at least one thread.
inline absl::Status CheckIoThreads(int io_threads) {
  if (io_threads >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("io_threads must be at least 1, not ", io_threads));
}

struct PieceLayout {
  uint64_t piece_bytes;  // a multiple of the chunk size
  int workers;           // workers * piece_bytes <= limit, if one chunk fits
};

// Chooses the layout of pieces; `wanted_bytes` is the size of a piece.
inline PieceLayout LayOutPieces(uint64_t chunk_bytes, int workers, uint64_t limit_bytes,
                                uint64_t wanted_bytes = kPieceBytes) {
  workers = std::max(workers, 1);
  const uint64_t share = limit_bytes / workers;
  const uint64_t chunks = std::max<uint64_t>(std::min(share, wanted_bytes) / chunk_bytes, 1);
  const uint64_t piece_bytes = chunks * chunk_bytes;
  const uint64_t affordable = std::max<uint64_t>(limit_bytes / piece_bytes, 1);
  return {piece_bytes, static_cast<int>(std::min<uint64_t>(workers, affordable))};
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_PIECES_H_
