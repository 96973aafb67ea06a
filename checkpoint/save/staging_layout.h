#ifndef TESSERA_CHECKPOINT_SAVE_STAGING_LAYOUT_H_
#define TESSERA_CHECKPOINT_SAVE_STAGING_LAYOUT_H_

#include <cstdint>

#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/save/staging_pool.h"

namespace tessera::ckpt {

struct DataWriterOptions {
  uint32_t chunk_bytes;  // of a checksum chunk
  int io_threads;
  // 0: a buffer for each thread, which copies a piece and writes it. Otherwise buffers for
  // everything, of which new ones are touched only while the copy is waited for, and so many of the
  // threads copy, at once, while it is not.
  int copy_ahead_threads;
  uint64_t staging_bytes;    // at most, or one chunk
  uint64_t write_bytes = 0;  // of a piece where there is room, see Storage::PreferredWriteBytes()
};

// How the pieces of a rank's data files lie in staging memory.
struct StagingLayout {
  uint64_t piece_bytes;
  uint64_t stride_bytes;  // from buffer to buffer: aligned for direct I/O
  uint64_t pieces;        // in all files
};

// The layout needs at most `limit_bytes` of staging memory, or one chunk.
StagingLayout LayOutStaging(const RankPlan& plan, const DataWriterOptions& options,
                            uint64_t limit_bytes);

// The memory that a DataWriter asks its pool for.
StagingRequest NeededStaging(const RankPlan& plan, const DataWriterOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_STAGING_LAYOUT_H_
