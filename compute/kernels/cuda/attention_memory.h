#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_

// The shared memory of attention's kernels, which decides where they can run.
//
// A block of four warps owns 64 positions of one head, 16 per warp, and iterates over tiles of the
// other side (keys, or queries). bf16 has two stages of tiles: one is copied while the other is
// multiplied. Heads are padded with zeros in shared memory to 32, 64 or 128. The backward pass "at
// once" is one kernel, for bf16. Its blocks have 128 keys: 32 for each of four warps, or 16 for
// each of eight where heads are padded to 128.

#include <algorithm>
#include <cstdint>

#include "layout/dtype.h"

namespace tessera::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kOwnRows = 64;
inline constexpr int kMaxHeadSize = 128;

enum class AttentionPass { kForward, kBackwardQueries, kBackwardKeys, kBackwardAtOnce };

constexpr int AttentionThreads(AttentionPass pass, int64_t padded_head) {
  const bool wide = pass == AttentionPass::kBackwardAtOnce && padded_head == kMaxHeadSize;
  return wide ? 2 * kAttentionThreads : kAttentionThreads;
}
constexpr int AttentionOwnRows(AttentionPass pass) {
  return pass == AttentionPass::kBackwardAtOnce ? 2 * kOwnRows : kOwnRows;
}

// Return the number of stages of the other side's tiles, and the rows of each tile.
constexpr int AttentionStages(int64_t element_size) { return element_size == 2 ? 2 : 1; }
constexpr int AttentionTileRows(AttentionPass pass, int64_t padded_head, int64_t element_size) {
  const bool forward = pass == AttentionPass::kForward, large = padded_head == kMaxHeadSize;
  if (element_size == 4) return large && !forward ? 16 : 32;
  return forward || (pass == AttentionPass::kBackwardQueries && !large) ? 64 : 32;
}

// Returns whether the block's own rows, which bf16 holds in registers, come through the second
// stage.
constexpr bool OwnRowsAreStaged(AttentionPass pass, int64_t padded_head, int64_t element_size) {
  return element_size == 2 && AttentionTileRows(pass, padded_head, element_size) == kOwnRows;
}

// Returns the shared memory of a block: its own rows of q (forward), q and d_out, or k and v; the
// stages, two tensors each; backward by keys, the two statistics of each query of a stage; at once,
// the gradients of a tile of scores and a number. Rows are 16 bytes longer, so that a warp's reads
// spread over the banks.
constexpr int64_t AttentionBytes(AttentionPass pass, int64_t padded_head, int64_t element_size) {
  const int64_t own = OwnRowsAreStaged(pass, padded_head, element_size) ? 0
                      : pass == AttentionPass::kForward                 ? kOwnRows
                                                        : 2 * AttentionOwnRows(pass);
  const int64_t rows = AttentionTileRows(pass, padded_head, element_size);
  const int64_t others = AttentionStages(element_size) * rows;
  const bool at_once = pass == AttentionPass::kBackwardAtOnce;
  return (own + 2 * others) * (padded_head * element_size + 16) +
         (at_once || pass == AttentionPass::kBackwardKeys ? others * 8 : 0) +
         (at_once ? AttentionOwnRows(pass) * (rows * element_size + 16) + 16 : 0);
}

// Returns the number of blocks for which a multiprocessor has registers, and an H100 the memory.
// fp32 is not limited.
constexpr int AttentionBlocks(AttentionPass pass, int64_t padded_head, int64_t element_size,
                              bool dropout) {
  if (element_size == 4) return 1;
  if (pass == AttentionPass::kBackwardAtOnce) return 256 / AttentionThreads(pass, padded_head);
  const bool large = padded_head == kMaxHeadSize && pass != AttentionPass::kBackwardQueries;
  return dropout || large ? 2 : 3;
}

// Returns the head size to which the backward pass at once pads.
constexpr int64_t AttentionHeadAtOnce(int64_t head_size) {
  return head_size <= kMaxHeadSize / 2 ? kMaxHeadSize / 2 : kMaxHeadSize;
}

// Returns the most shared memory that a block of any of attention's kernels takes, for heads of
// this size. `at_once`: bf16's backward pass may be one kernel.
constexpr int64_t AttentionSharedBytes(DType dtype, int64_t head_size, bool backward,
                                       bool at_once = false) {
  const int64_t padded = head_size <= 32 ? 32 : head_size <= 64 ? 64 : kMaxHeadSize;
  const auto bytes = [&](AttentionPass pass) {
    return AttentionBytes(pass, padded, ElementSize(dtype));
  };
  if (!backward) return bytes(AttentionPass::kForward);
  return std::max(
      {bytes(AttentionPass::kBackwardQueries), bytes(AttentionPass::kBackwardKeys),
       at_once ? AttentionBytes(AttentionPass::kBackwardAtOnce, AttentionHeadAtOnce(head_size), 2)
               : 0});
}

// What a kernel of attention by warpgroups is compiled for (attention_warpgroups.cc). A thread
// has 128 registers where two blocks of two warpgroups share a multiprocessor, 168 in one block of
// three, and 255 in one block of two.
struct WarpgroupShape {
  int warpgroups;  // of a block, each of which owns 64 positions
  int rows;        // of a tile of the other side
  int blocks;      // for which a multiprocessor has registers
};
constexpr WarpgroupShape WarpgroupShapeOf(AttentionPass pass, int64_t head_size) {
  const bool large = head_size == kMaxHeadSize;
  if (pass == AttentionPass::kForward) return {2, large ? 64 : 96, 2};
  if (pass == AttentionPass::kBackwardQueries && !large) return {2, 64, 2};
  return {pass == AttentionPass::kBackwardQueries || !large ? 3 : 2, 64, 1};
}

// Returns the shared memory of one of its blocks, which also holds the block's own rows. Rows are
// not longer for the banks. 1024 bytes let the tiles begin at a multiple of 1024.
constexpr int64_t WarpgroupAttentionBytes(AttentionPass pass, int64_t head_size) {
  const WarpgroupShape shape = WarpgroupShapeOf(pass, head_size);
  const int64_t own = (pass == AttentionPass::kForward ? 1 : 2) * shape.warpgroups * kOwnRows;
  const int64_t others = AttentionStages(2) * shape.rows;
  return 1024 + (own + 2 * others) * head_size * 2 +
         (pass == AttentionPass::kBackwardKeys ? others * 8 : 0);
}

// Returns the scratch memory of the backward pass for this number of heads in all samples: two
// statistics of each query. At once, d_q in fp32 and the turns of its tiles, too.
constexpr int64_t AttentionScratchBytes(int64_t heads, int64_t sequence, int64_t head_size,
                                        bool at_once) {
  const int64_t queries = heads * ((sequence + kOwnRows - 1) / kOwnRows * kOwnRows);
  const int64_t padded = AttentionHeadAtOnce(head_size);
  const int64_t rows = AttentionTileRows(AttentionPass::kBackwardAtOnce, padded, 2);
  return queries * 8 + (at_once ? (queries * padded + queries / rows + 1) * 4 : 0);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_
