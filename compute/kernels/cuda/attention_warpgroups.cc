// Attention's forward pass on the tensor cores of compute capability 9.0, as attention_forward.cc
// computes it on those of all others: Shah et al., "FlashAttention-3" (2024), without its
// asynchronous copies by TMA and its overlap within a warpgroup.
//
// A block owns 128 queries of one head (attention_warpgroup_tiles.h). Scores, weights and sums are
// in registers. Two blocks share a multiprocessor, so that the exponentials of one warpgroup run
// while three others multiply.

#include "compute/kernels/cuda/attention_warpgroups.h"

#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_softmax.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/attention_warpgroup_tiles.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/warpgroup.h"
#include "tensor/bfloat16.h"

namespace tessera::cuda {
namespace {

// One block for each 128 queries, head and sample; the last ones, which see the most keys, first.
template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kBlocks)
    AttentionForwardWarpgroups(AttentionShape shape, Bf16Heads q, Bf16Heads k, Bf16Heads v,
                               Bf16Heads out, float* log_sum_exp) {
  shape.head_size = Kind::kHead;  // known to the compiler
  out.packs = true;
  const int head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int blocks = simt::BlocksOf(shape.sequence, Kind::kOwn);
  const int block_query = (blocks - 1 - static_cast<int>(simt::BlockX())) * Kind::kOwn;
  const int warp = UniformWarpIndex(), own = warp / 4 * kWarpgroupRows;
  const int first_query = block_query + warp * kTileRows;
  simt::SharedMemory memory;
  const WarpgroupTiles<Kind> tiles(memory);
  const typename Kind::Own queries = tiles.Own(0);
  RowLoader<Kind>(q.sequence_stride)
      .Load(shape.sequence - block_query, {q.Row(batch, block_query, head)}, {queries});
  RowLoader<Kind> loader(k.sequence_stride);
  const auto load = [&](int tile) {
    const int stage = tile % Kind::kStages;
    loader.Load(shape.sequence - tile * Kind::kRows,
                {k.Row(batch, 0, kv_head), v.Row(batch, 0, kv_head)},
                {tiles.Get(stage, 0), tiles.Get(stage, 1)});
  };
  load(0);

  typename Kind::Sums sums = {};
  RowState state;
  const int key_end = simt::Min(block_query + Kind::kOwn, shape.sequence);
  const int tile_end = simt::BlocksOf(key_end, Kind::kRows);
#pragma unroll 1
  for (int tile = 0; tile < tile_end; ++tile) {
    const int stage = tile % Kind::kStages, first_key = tile * Kind::kRows;
    PublishCopies();
    simt::SyncThreads();
    if (tile + 1 < tile_end) load(tile + 1);
    if (first_key >= block_query + own + kWarpgroupRows) continue;  // the warpgroup sees none
    typename Kind::Scores scores;
    BeginProducts(scores);
    QueueProductByRows(queries, own, tiles.Get(stage, 0), scores);
    FinishProducts(scores);
    HideUnseen</*kRowsAreQueries=*/true>(first_query - first_key, scores);
    float corrections[2];
    UpdateSoftmax(shape.scale_log2, scores, state, corrections);
    CorrectSums(corrections, sums);
    typename Kind::Weights weights;
    PackWeights(scores, weights);
    BeginProducts(sums, weights);
    QueueProductByColumns(weights, tiles.Get(stage, 1), sums);
    FinishProducts(sums, weights);
  }
  StoreAttention(sums, state, shape, batch, head, first_query, out, log_sum_exp);
}

}  // namespace

bool CanAttendByWarpgroups(const ops::AttentionForward& op) { return FitsWarpgroups(op, op.out); }

void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionForward& op) {
  WithWarpgroupHead(shape, [&]<int kHead>() {
    using Kind = WarpgroupKind<AttentionPass::kForward, kHead>;
    simt::Launch<AttentionForwardWarpgroups<Kind>>(
        {simt::BlocksOf(shape.sequence, Kind::kOwn), shape.heads, shape.batch}, Kind::kThreads,
        Kind::kSharedBytes, stream, shape, AsHeads<BFloat16>(op.q), AsHeads<BFloat16>(op.k),
        AsHeads<BFloat16>(op.v), AsHeads<BFloat16>(op.out), op.log_sum_exp.as<float>());
  });
}

}  // namespace tessera::cuda
