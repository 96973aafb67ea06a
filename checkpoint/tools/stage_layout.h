#ifndef TESSERA_CHECKPOINT_TOOLS_STAGE_LAYOUT_H_
#define TESSERA_CHECKPOINT_TOOLS_STAGE_LAYOUT_H_

// How a rank of tensor parallelism holds a stage: in one flat buffer, of which ranks of ZeRO own
// parts.

#include <cstdint>
#include <vector>

#include "checkpoint/layout/box.h"
#include "checkpoint/tools/saved_parameters.h"

namespace tessera::ckpt {

// Part of a parameter inside a buffer.
struct Piece {
  const SavedParameter* parameter;
  std::vector<int64_t> global_offset;
  std::vector<int64_t> local_offset;
  Shape shape;
  Shape padded_shape;  // of the parameter; empty: none
};

// One parameter, one virtual shard of it, or of several that are fused, in the flat buffer of a
// stage.
struct Buffer {
  std::vector<Piece> pieces;
  Shape shape;
  bool alone = false;  // a tied table has a bucket of its own
  int64_t begin = 0;   // in the flat buffer
  int64_t elements() const { return ElementCount(shape); }
};

// A stage as one rank of tensor parallelism holds it.
struct StageLayout {
  std::vector<Buffer> buffers;
  int64_t flat_elements = 0;
};

// Elements [begin, end) of the flat buffer.
struct Range {
  int64_t begin;
  int64_t end;
};

// Which virtual shards are a rank's: `own` of `all`, from `first` on. A vocabulary is padded to a
// multiple of `vocabulary_multiple` and of the shards; 0: as the saved padding suggests.
struct VirtualShards {
  int64_t all;
  int64_t first;
  int64_t own;
  int64_t vocabulary_multiple;
};

// Of parameters that are cut together, all of the first virtual shard come before any of the
// second. `parameters` must outlive the layout.
StageLayout LayOutStage(const std::vector<const SavedParameter*>& parameters,
                        const VirtualShards& shards);

// The parts of the flat buffer that one of `ranks` ranks of ZeRO owns, ascending: a piece of each
// bucket. Buckets are filled from the end of the buffer, the order in which a backward pass
// completes them, with neighbours up to `bucket_elements`, one at least.
std::vector<Range> OwnedRanges(const StageLayout& stage, int64_t bucket_elements, int64_t ranks,
                               int64_t rank);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_STAGE_LAYOUT_H_
