#include "checkpoint/save/staging_layout.h"

#include <algorithm>

#include "base/checked_math.h"
#include "checkpoint/include/storage.h"
#include "checkpoint/storage/pieces.h"

namespace tessera::ckpt {
namespace {

PieceLayout LayOut(const DataWriterOptions& options, uint64_t limit_bytes) {
  return LayOutPieces(options.chunk_bytes, options.io_threads, limit_bytes,
                      options.write_bytes > 0 ? options.write_bytes : kPieceBytes);
}

}  // namespace

StagingLayout LayOutStaging(const RankPlan& plan, const DataWriterOptions& options,
                            uint64_t limit_bytes) {
  const uint64_t piece_bytes = LayOut(options, limit_bytes).piece_bytes;
  uint64_t largest = 0, pieces = 0;
  for (const FilePlan& file : plan.files()) {
    largest = std::max(largest, std::min(file.size_bytes(), piece_bytes));
    pieces += CeilDivide(file.size_bytes(), piece_bytes);
  }
  return {piece_bytes, RoundUp(largest, kIoAlignmentBytes), pieces};
}

StagingRequest NeededStaging(const RankPlan& plan, const DataWriterOptions& options) {
  const StagingLayout layout = LayOutStaging(plan, options, options.staging_bytes);
  const uint64_t threads = LayOut(options, options.staging_bytes).workers;
  const uint64_t buffers =
      options.copy_ahead_threads > 0 ? layout.pieces : std::min(layout.pieces, threads);
  const uint64_t chunk_bytes = RoundUp<uint64_t>(options.chunk_bytes, kIoAlignmentBytes);
  return {.wanted_bytes = buffers * layout.stride_bytes,
          .limit_bytes = options.staging_bytes,
          .least_bytes = std::min(chunk_bytes, layout.stride_bytes)};
}

}  // namespace tessera::ckpt
