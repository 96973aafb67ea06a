// Attention's backward pass on the tensor cores of compute capability 9.0, by the formulas of
// attention_backward.cc: one kernel computes d_q, another d_k and d_v.
//
// Two kernels multiply seven times, where one kernel would multiply five times but exchange its
// sums of d_q with the L2 cache. For heads of 64, 128 keys and 64 queries, that takes 2,160 cycles
// of the cache's rate, and the seven products 1,790 of the tensor cores'. Blocks of two kernels
// never wait for each other, and no fp32 sums need scratch memory.
//
// A block owns queries, or keys, of one head (attention_warpgroup_tiles.h). Its rows are left
// operands in shared memory. The gradients of scores are left operands in registers, and so are
// the weights.

#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/attention_warpgroup_tiles.h"
#include "compute/kernels/cuda/attention_warpgroups.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/warpgroup.h"
#include "tensor/bfloat16.h"

namespace tessera::cuda {
namespace {

// One block for each kOwn queries, head and sample; the last ones, which see the most keys, first.
template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kBlocks)
    AttentionBackwardQueriesWarpgroups(AttentionShape shape, Bf16Heads d_out, Bf16Heads q,
                                       Bf16Heads k, Bf16Heads v, QueryStatistics statistics,
                                       Bf16Heads d_q) {
  shape.head_size = Kind::kHead;  // known to the compiler
  d_q.packs = true;
  const int head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int blocks = simt::BlocksOf(shape.sequence, Kind::kOwn);
  const int block_query = (blocks - 1 - static_cast<int>(simt::BlockX())) * Kind::kOwn;
  const int warp = UniformWarpIndex(), own = warp / 4 * kWarpgroupRows;
  const int first_query = block_query + warp * kTileRows;
  // Where the keys end that the warpgroup sees: none, if its queries do not exist.
  const int own_query = block_query + own;
  const int own_end = own_query < shape.sequence ? own_query + kWarpgroupRows : 0;
  simt::SharedMemory memory;
  const WarpgroupTiles<Kind> tiles(memory);
  const typename Kind::Own queries = tiles.Own(0), gradients = tiles.Own(1);
  RowLoader<Kind>(q.sequence_stride)
      .Load(shape.sequence - block_query, {q.Row(batch, block_query, head)}, {queries});
  RowLoader<Kind>(d_out.sequence_stride)
      .Load(shape.sequence - block_query, {d_out.Row(batch, block_query, head)}, {gradients});
  RowLoader<Kind> loader(k.sequence_stride);
  const auto load = [&](int tile) {
    const int stage = tile % Kind::kStages;
    loader.Load(shape.sequence - tile * Kind::kRows,
                {k.Row(batch, 0, kv_head), v.Row(batch, 0, kv_head)},
                {tiles.Get(stage, 0), tiles.Get(stage, 1)});
  };
  load(0);
  float of_rows[2][2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Rows behind the last query are not stored.
    const int t = simt::Min(first_query + TileRow(2 * row), shape.sequence - 1);
    simt::LoadPack(statistics.Of(shape, batch, head, t), of_rows[row]);
  }

  typename Kind::Sums sums = {};
  const int key_end = simt::Min(block_query + Kind::kOwn, shape.sequence);
  const int tile_end = simt::BlocksOf(key_end, Kind::kRows);
#pragma unroll 1
  for (int tile = 0; tile < tile_end; ++tile) {
    const int stage = tile % Kind::kStages, first_key = tile * Kind::kRows;
    PublishCopies();
    simt::SyncThreads();
    if (tile + 1 < tile_end) load(tile + 1);
    if (first_key >= own_end) continue;
    typename Kind::Scores scores, products;
    BeginProducts(scores, products);
    QueueProductByRows(queries, own, tiles.Get(stage, 0), scores);
    QueueProductByRows(gradients, own, tiles.Get(stage, 1), products);
    FinishProducts(scores, products);
    HideUnseen</*kRowsAreQueries=*/true>(first_query - first_key, scores);
#pragma unroll
    for (int n = 0; n < Kind::kRows / kTileColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = simt::Exp2(fmaf(scores[n][i], shape.scale_log2, -of_rows[i / 2][0]));
        scores[n][i] = p * (products[n][i] - of_rows[i / 2][1]);
      }
    }
    typename Kind::Weights d_scores;
    PackWeights(scores, d_scores);
    BeginProducts(sums, d_scores);
    QueueProductByColumns(d_scores, tiles.Get(stage, 0), sums);
    FinishProducts(sums, d_scores);
  }
  StoreHeadRows(sums, {shape.scale, shape.scale}, shape, batch, head, first_query, d_q);
}

// Turns scores of keys and queries into weights, and products of values and gradients into the
// gradients of scores. `statistics` are those of the queries.
template <int kTiles>
TESSERA_DEVICE void WeighKeys(float scale_log2, const simt::SharedArray<float>& statistics,
                              float (&scores)[kTiles][4], float (&products)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float of_columns[4];  // two of each
    statistics.GetPack((n * kTileColumns + TileColumn(0)) * 2, of_columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = simt::Exp2(fmaf(scores[n][i], scale_log2, -of_columns[i % 2 * 2]));
      products[n][i] = scores[n][i] * (products[n][i] - of_columns[i % 2 * 2 + 1]);
    }
  }
}

// One block for each kOwn keys, key head and sample; the first ones, which most queries see, first.
// Sums over the query heads of a key head, in their order.
template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kBlocks)
    AttentionBackwardKeysWarpgroups(AttentionShape shape, Bf16Heads d_out, Bf16Heads q, Bf16Heads k,
                                    Bf16Heads v, QueryStatistics statistics, Bf16Heads d_k,
                                    Bf16Heads d_v) {
  constexpr int kStatistics = 2 * Kind::kRows;
  shape.head_size = Kind::kHead;  // known to the compiler
  d_k.packs = d_v.packs = true;
  const int kv_head = simt::BlockY(), batch = simt::BlockZ();
  const int block_key = static_cast<int>(simt::BlockX()) * Kind::kOwn;
  const int warp = UniformWarpIndex(), own = warp / 4 * kWarpgroupRows;
  const int first_key = block_key + warp * kTileRows;
  const int group = shape.heads / shape.kv_heads;
  // Queries before the block see none of its keys. Tiles of a head follow those of the one before.
  const int tiles_of_head = simt::BlocksOf(shape.sequence - block_key, Kind::kRows);
  simt::SharedMemory memory;
  const WarpgroupTiles<Kind> tiles(memory);
  const auto staged = memory.Take<float>(Kind::kStages * kStatistics);
  RowLoader<Kind>(k.sequence_stride)
      .Load(shape.sequence - block_key,
            {k.Row(batch, block_key, kv_head), v.Row(batch, block_key, kv_head)},
            {tiles.Own(0), tiles.Own(1)});
  const auto load = [&](int head, int query, int stage) {
    const int left = shape.sequence - query;
    RowLoader<Kind>(q.sequence_stride)
        .Load(left, {q.Row(batch, query, head)}, {tiles.Get(stage, 0)});
    RowLoader<Kind>(d_out.sequence_stride)
        .Load(left, {d_out.Row(batch, query, head)}, {tiles.Get(stage, 1)});
    if (const int t = simt::ThreadIndex() * 2; t < Kind::kRows) {
      staged.CopyPackAsync(stage * kStatistics + 2 * t,
                           statistics.Of(shape, batch, head, query + t), true);
    }
  };
  int head = kv_head * group, next_query = block_key;
  load(head, next_query, 0);

  typename Kind::Sums d_key_sums = {}, d_value_sums = {};
  const int tile_end = group * tiles_of_head;
#pragma unroll 1
  for (int tile = 0; tile < tile_end; ++tile) {
    const int stage = tile % Kind::kStages, query = next_query;
    next_query += Kind::kRows;
    if (next_query >= shape.sequence) {
      next_query = block_key;
      ++head;
    }
    PublishCopies();
    simt::SyncThreads();
    if (tile + 1 < tile_end) load(head, next_query, (tile + 1) % Kind::kStages);
    if (query + Kind::kRows <= block_key + own) continue;  // none sees the warpgroup's keys
    typename Kind::Scores scores, products;
    BeginProducts(scores, products);
    QueueProductByRows(tiles.Own(0), own, tiles.Get(stage, 0), scores);
    QueueProductByRows(tiles.Own(1), own, tiles.Get(stage, 1), products);
    FinishProducts(scores, products);
    HideUnseen</*kRowsAreQueries=*/false>(query - first_key, scores);
    WeighKeys(shape.scale_log2, staged.Slice(stage * kStatistics, kStatistics), scores, products);
    typename Kind::Weights weights, d_scores;
    PackWeights(scores, weights);
    PackWeights(products, d_scores);
    BeginProducts(d_value_sums, weights, d_key_sums, d_scores);
    QueueProductByColumns(weights, tiles.Get(stage, 1), d_value_sums);
    QueueProductByColumns(d_scores, tiles.Get(stage, 0), d_key_sums);
    FinishProducts(d_value_sums, weights, d_key_sums, d_scores);
  }
  StoreHeadRows(d_key_sums, {shape.scale, shape.scale}, shape, batch, kv_head, first_key, d_k);
  StoreHeadRows(d_value_sums, {1.0f, 1.0f}, shape, batch, kv_head, first_key, d_v);
}

}  // namespace

bool CanAttendByWarpgroups(const ops::AttentionBackward& op) {
  return FitsWarpgroups(op, op.d_out, op.d_q, op.d_k, op.d_v);
}

void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionBackward& op,
                                 const QueryStatistics& statistics) {
  const Bf16Heads d_out = AsHeads<BFloat16>(op.d_out), q = AsHeads<BFloat16>(op.q),
                  k = AsHeads<BFloat16>(op.k), v = AsHeads<BFloat16>(op.v);
  WithWarpgroupHead(shape, [&]<int kHead>() {
    using Queries = WarpgroupKind<AttentionPass::kBackwardQueries, kHead>;
    using Keys = WarpgroupKind<AttentionPass::kBackwardKeys, kHead>;
    simt::Launch<AttentionBackwardQueriesWarpgroups<Queries>>(
        {simt::BlocksOf(shape.sequence, Queries::kOwn), shape.heads, shape.batch},
        Queries::kThreads, Queries::kSharedBytes, stream, shape, d_out, q, k, v, statistics,
        AsHeads<BFloat16>(op.d_q));
    simt::Launch<AttentionBackwardKeysWarpgroups<Keys>>(
        {simt::BlocksOf(shape.sequence, Keys::kOwn), shape.kv_heads, shape.batch}, Keys::kThreads,
        Keys::kSharedBytes, stream, shape, d_out, q, k, v, statistics, AsHeads<BFloat16>(op.d_k),
        AsHeads<BFloat16>(op.d_v));
  });
}

}  // namespace tessera::cuda
