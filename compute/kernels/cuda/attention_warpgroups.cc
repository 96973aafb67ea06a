// Attention on the tensor cores of compute capability 9.0, by the formulas of attention_forward.cc
// and attention_backward.cc: Shah et al., "FlashAttention-3" (2024), without its copies by TMA.
//
// A block owns 64 positions of one head for each of its warpgroups (WarpgroupShapeOf), and iterates
// over tiles of the other side: one is copied while the other is multiplied. Scores, weights and
// sums are in registers. Where two blocks share a multiprocessor, the exponentials of one warpgroup
// run while three others multiply, and those of d_q beside a product of its own.
//
// The backward pass has one kernel for d_q, another for d_k and d_v. They multiply seven times,
// where one kernel would multiply five times, but exchange its sums of d_q with the L2 cache. For
// heads of 64, 128 keys and 64 queries, that takes 2,160 cycles at the cache's rate, and the seven
// products 1,790 at the tensor cores'.

#include "compute/kernels/cuda/attention_warpgroups.h"

#include <cstdint>

#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_softmax.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/warpgroup.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using Bf16Heads = Heads<BFloat16>;

template <AttentionPass kPass, int kHeadSize>
struct WarpgroupKind {
  static constexpr int kHead = kHeadSize;
  static constexpr WarpgroupShape kShape = WarpgroupShapeOf(kPass, kHead);
  static constexpr int kThreads = kShape.warpgroups * kWarpgroupThreads;
  static constexpr int kOwn = kShape.warpgroups * kWarpgroupRows;
  static constexpr int kOwnTensors = kPass == AttentionPass::kForward ? 1 : 2;
  static constexpr int kRows = kShape.rows;
  static constexpr int kStages = AttentionStages(sizeof(BFloat16));
  static constexpr int64_t kSharedBytes = WarpgroupAttentionBytes(kPass, kHead);
  using Own = SwizzledTile<kOwn, kHead>;
  using Other = SwizzledTile<kRows, kHead>;
  using Scores = float[kRows / kTileColumns][4];
  using Weights = uint32_t[kRows / kTileInner][4];
  using Sums = float[kHead / kTileColumns][4];
};

// The block's own rows, and two tensors of the other side in each stage.
template <typename Kind>
struct WarpgroupTiles {
  static constexpr int kOwn = Kind::Own::kElements, kOther = Kind::Other::kElements;
  static constexpr int kAll = Kind::kOwnTensors * kOwn + 2 * Kind::kStages * kOther;

  TESSERA_DEVICE typename Kind::Own Own(int tensor) const {
    return {all.Slice(tensor * kOwn, kOwn)};
  }
  TESSERA_DEVICE typename Kind::Other Get(int stage, int tensor) const {
    return {all.Slice(Kind::kOwnTensors * kOwn + (2 * stage + tensor) * kOther, kOther)};
  }

  const simt::SharedArray<BFloat16> all;
};

// A thread's part of the rows of tensors of one head, tile after tile: a run of 16 bytes of some
// rows. The distance of rows is the same in all tensors, which saves registers. Two warpgroups
// copy, because the rows of three would not divide tiles.
template <typename Kind>
class RowLoader {
 public:
  TESSERA_DEVICE explicit RowLoader(int64_t stride)
      : stride_(stride), offset_(Row() * stride + Column()) {}

  // Begins to copy the next rows. `left` of them exist; the rest becomes zeros. `from` has the
  // address of each tensor's first row.
  template <int kRows, int kTensors>
  TESSERA_DEVICE void Load(int left, const BFloat16* const (&from)[kTensors],
                           const SwizzledTile<kRows, Kind::kHead> (&to)[kTensors]) {
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    if (Kind::kThreads > kCopyingThreads && simt::ThreadIndex() >= kCopyingThreads) return;
    const int place = to[0].At(Row(), Column());
#pragma unroll
    for (int i = 0; i < kRows; i += kRowsAtOnce, offset_ += kRowsAtOnce * stride_) {
#pragma unroll
      for (int n = 0; n < kTensors; ++n) {
        to[n].elements.CopyPackAsync(place + i * to[0].kPanelColumns, from[n] + offset_,
                                     Row() + i < left);
      }
    }
  }

 private:
  static constexpr int kRun = simt::SharedArray<BFloat16>::kPack;
  static constexpr int kRunsOfRow = Kind::kHead / kRun;
  static constexpr int kCopyingThreads = 2 * kWarpgroupThreads;
  static constexpr int kRowsAtOnce = kCopyingThreads / kRunsOfRow;

  static TESSERA_DEVICE int Row() { return simt::ThreadIndex() / kRunsOfRow; }
  static TESSERA_DEVICE int Column() { return simt::ThreadIndex() % kRunsOfRow * kRun; }

  const int64_t stride_;
  int64_t offset_;
};

// Returns the warp's index as the same number in all lanes, which descriptors must be.
TESSERA_DEVICE int UniformWarpIndex() {
  return simt::ShuffleFrom(simt::kAllLanes, simt::WarpIndex(), 0);
}

// Turns weights, as accumulators, into the left operand of a product.
template <int kTiles>
TESSERA_DEVICE void PackWeights(const float (&scores)[kTiles][4],
                                uint32_t (&weights)[kTiles / 2][4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = PairOf(scores[2 * k + i / 2], i % 2);
  }
}

// A block's queries, and the keys that they see. One block for each kOwn queries, head and sample;
// the last ones, which see the most keys, first.
template <typename Kind>
class QueryBlock {
 public:
  TESSERA_DEVICE explicit QueryBlock(const AttentionShape& shape) {
    const int blocks = simt::BlocksOf(shape.sequence, Kind::kOwn), warp = UniformWarpIndex();
    first_ = (blocks - 1 - static_cast<int>(simt::BlockX())) * Kind::kOwn;
    own = warp / 4 * kWarpgroupRows;
    first_of_warp = first_ + warp * kTileRows;
  }

  TESSERA_DEVICE void Load(const AttentionShape& shape, const Bf16Heads& from,
                           const typename Kind::Own& to) const {
    RowLoader<Kind>(from.sequence_stride)
        .Load(shape.sequence - first_, {from.Row(batch, first_, head)}, {to});
  }
  // Calls compute(stage, first_key, load_next) for each tile of keys and values that the warpgroup
  // sees. load_next() begins to copy the tile after it: compute() calls it once, while products
  // that it has queued run.
  template <typename Compute>
  TESSERA_DEVICE void ForKeys(const AttentionShape& shape, const Bf16Heads& k, const Bf16Heads& v,
                              const WarpgroupTiles<Kind>& tiles, Compute compute) const {
    RowLoader<Kind> loader(k.sequence_stride);
    const int kv_head = shape.KeyHead(head);
    const auto load = [&](int tile, int stage) {
      loader.Load(shape.sequence - tile * Kind::kRows,
                  {k.Row(batch, 0, kv_head), v.Row(batch, 0, kv_head)},
                  {tiles.Get(stage, 0), tiles.Get(stage, 1)});
    };
    // Queries that do not exist see no keys.
    const int own_end = first_ + own < shape.sequence ? first_ + own + kWarpgroupRows : 0;
    const int key_end = simt::Min(first_ + Kind::kOwn, shape.sequence);
    const int tile_end = simt::BlocksOf(key_end, Kind::kRows);
    load(0, 0);
#pragma unroll 1
    for (int tile = 0; tile < tile_end; ++tile) {
      PublishCopies();
      simt::SyncThreads();
      const auto load_next = [&] {
        if (tile + 1 < tile_end) load(tile + 1, (tile + 1) % Kind::kStages);
      };
      if (tile * Kind::kRows < own_end) {
        compute(tile % Kind::kStages, tile * Kind::kRows, load_next);
      } else {
        load_next();
      }
    }
  }

  const int head = simt::BlockY(), batch = simt::BlockZ();
  int own;  // where the warpgroup's queries begin in the block
  int first_of_warp;

 private:
  int first_;
};

template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kShape.blocks)
    AttentionForwardWarpgroups(AttentionShape shape, Bf16Heads q, Bf16Heads k, Bf16Heads v,
                               Bf16Heads out, float* log_sum_exp) {
  shape.head_size = Kind::kHead;  // known to the compiler
  out.packs = true;
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  const WarpgroupTiles<Kind> tiles = {memory.Take<BFloat16>(WarpgroupTiles<Kind>::kAll)};
  const QueryBlock<Kind> block(shape);
  block.Load(shape, q, tiles.Own(0));
  typename Kind::Sums sums = {};
  RowState state;
  block.ForKeys(shape, k, v, tiles, [&](int stage, int first_key, const auto& load_next) {
    typename Kind::Scores scores;
    BeginProducts(scores);
    QueueProductByRows(tiles.Own(0), block.own, tiles.Get(stage, 0), scores);
    load_next();
    FinishProducts(scores);
    HideUnseen</*kRowsAreQueries=*/true>(block.first_of_warp - first_key, scores);
    float corrections[2];
    UpdateSoftmax(shape.scale_log2, scores, state, corrections);
    CorrectSums(corrections, sums);
    typename Kind::Weights weights;
    PackWeights(scores, weights);
    BeginProducts(sums, weights);
    QueueProductByColumns(weights, tiles.Get(stage, 1), sums);
    FinishProducts(sums, weights);
  });
  StoreAttention(sums, state, shape, block.batch, block.head, block.first_of_warp, out,
                 log_sum_exp);
}

template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kShape.blocks)
    AttentionBackwardQueriesWarpgroups(AttentionShape shape, Bf16Heads d_out, Bf16Heads q,
                                       Bf16Heads k, Bf16Heads v, QueryStatistics statistics,
                                       Bf16Heads d_q) {
  shape.head_size = Kind::kHead;  // known to the compiler
  d_q.packs = true;
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  const WarpgroupTiles<Kind> tiles = {memory.Take<BFloat16>(WarpgroupTiles<Kind>::kAll)};
  const QueryBlock<Kind> block(shape);
  block.Load(shape, q, tiles.Own(0));
  block.Load(shape, d_out, tiles.Own(1));
  float of_rows[2][2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Rows behind the last query are not stored.
    const int t = simt::Min(block.first_of_warp + TileRow(2 * row), shape.sequence - 1);
    simt::LoadPack(statistics.Of(shape, block.batch, block.head, t), of_rows[row]);
  }
  typename Kind::Sums sums = {};
  block.ForKeys(shape, k, v, tiles, [&](int stage, int first_key, const auto& load_next) {
    typename Kind::Scores scores, products;
    BeginProducts(scores, products);
    QueueProductByRows(tiles.Own(0), block.own, tiles.Get(stage, 0), scores);
    QueueProductByRows(tiles.Own(1), block.own, tiles.Get(stage, 1), products);
    FinishEarlierProducts(scores);
    HideUnseen</*kRowsAreQueries=*/true>(block.first_of_warp - first_key, scores);
    constexpr int kScores = Kind::kRows / kTileColumns * 4;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      float& score = scores[i / 4][i % 4];
      score = simt::Exp2(fmaf(score, shape.scale_log2, -of_rows[i % 4 / 2][0]));
    }
    load_next();  // here, since ptxas moves exponentials behind a wait, but most not over branches
    FinishProducts(products);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i / 4][i % 4] *= products[i / 4][i % 4] - of_rows[i % 4 / 2][1];
    }
    typename Kind::Weights d_scores;
    PackWeights(scores, d_scores);
    BeginProducts(sums, d_scores);
    QueueProductByColumns(d_scores, tiles.Get(stage, 0), sums);
    FinishProducts(sums, d_scores);
  });
  StoreHeadRows(sums, {shape.scale, shape.scale}, shape, block.batch, block.head,
                block.first_of_warp, d_q);
}

// Turns scores of keys and queries into weights, and products of values and gradients into the
// gradients of scores, by the statistics of the queries.
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
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kShape.blocks)
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
  memory.AlignTo(kSwizzleAlignment);
  const WarpgroupTiles<Kind> tiles = {memory.Take<BFloat16>(WarpgroupTiles<Kind>::kAll)};
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
    const auto load_next = [&] {
      if (tile + 1 < tile_end) load(head, next_query, (tile + 1) % Kind::kStages);
    };
    if (query + Kind::kRows <= block_key + own) {  // none sees the warpgroup's keys
      load_next();
      continue;
    }
    typename Kind::Scores scores, products;
    BeginProducts(scores, products);
    QueueProductByRows(tiles.Own(0), own, tiles.Get(stage, 0), scores);
    QueueProductByRows(tiles.Own(1), own, tiles.Get(stage, 1), products);
    load_next();
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

// Returns whether the kernels can compute this, with these other operands.
template <typename Op, typename... Others>
bool FitsWarpgroups(const Op& op, const Others&... others) {
  const auto packs = [](const TensorView& x) { return AsHeads<BFloat16>(x).packs; };
  const int64_t head = op.q.dim(3);
  return op.q.dtype() == DType::kBF16 && op.options.dropout_probability == 0 &&
         (head == kMaxHeadSize / 2 || head == kMaxHeadSize) && packs(op.q) && packs(op.k) &&
         packs(op.v) && (packs(others) && ...) && op.k.stride(1) == op.v.stride(1);
}

template <typename Kind, auto kKernel, typename... Arguments>
void LaunchKind(simt::Stream stream, const AttentionShape& shape, int64_t heads,
                const Arguments&... arguments) {
  simt::Launch<kKernel>({simt::BlocksOf(shape.sequence, Kind::kOwn), heads, shape.batch},
                        Kind::kThreads, Kind::kSharedBytes, stream, shape, arguments...);
}

// Calls body.operator()<kHead>() with the size of the heads.
template <typename Body>
void WithHead(const AttentionShape& shape, Body body) {
  shape.head_size == kMaxHeadSize ? body.template operator()<kMaxHeadSize>()
                                  : body.template operator()<kMaxHeadSize / 2>();
}

}  // namespace

bool CanAttendByWarpgroups(const ops::AttentionForward& op) { return FitsWarpgroups(op, op.out); }
bool CanAttendByWarpgroups(const ops::AttentionBackward& op) {
  return FitsWarpgroups(op, op.d_out, op.d_q, op.d_k, op.d_v);
}

void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionForward& op) {
  WithHead(shape, [&]<int kHead>() {
    using Kind = WarpgroupKind<AttentionPass::kForward, kHead>;
    LaunchKind<Kind, AttentionForwardWarpgroups<Kind>>(
        stream, shape, shape.heads, AsHeads<BFloat16>(op.q), AsHeads<BFloat16>(op.k),
        AsHeads<BFloat16>(op.v), AsHeads<BFloat16>(op.out), op.log_sum_exp.as<float>());
  });
}

void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionBackward& op,
                                 const QueryStatistics& statistics) {
  const Bf16Heads d_out = AsHeads<BFloat16>(op.d_out), q = AsHeads<BFloat16>(op.q),
                  k = AsHeads<BFloat16>(op.k), v = AsHeads<BFloat16>(op.v);
  WithHead(shape, [&]<int kHead>() {
    using Queries = WarpgroupKind<AttentionPass::kBackwardQueries, kHead>;
    using Keys = WarpgroupKind<AttentionPass::kBackwardKeys, kHead>;
    LaunchKind<Queries, AttentionBackwardQueriesWarpgroups<Queries>>(
        stream, shape, shape.heads, d_out, q, k, v, statistics, AsHeads<BFloat16>(op.d_q));
    LaunchKind<Keys, AttentionBackwardKeysWarpgroups<Keys>>(
        stream, shape, shape.kv_heads, d_out, q, k, v, statistics, AsHeads<BFloat16>(op.d_k),
        AsHeads<BFloat16>(op.d_v));
  });
}

}  // namespace tessera::cuda
