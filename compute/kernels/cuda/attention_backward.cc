// With P[t,s] = exp(S[t,s] - log_sum_exp[t]), M the dropout factors, A[t,s] = M[t,s] d_out[t] v[s],
// delta[t] = d_out[t] out[t] and dS[t,s] = P[t,s] (A[t,s] - delta[t]):
//   d_q[t] = scale sum over s of dS[t,s] k[s]
//   d_k[s] = scale sum over t of dS[t,s] q[t]      d_v[s] = sum over t of P[t,s] M[t,s] d_out[t]
// One kernel computes d_q, block by block of queries, another d_k and d_v, block by block of keys.
// Scores are computed in both, so that no two blocks add to the same element.
//
// Or, if ProductChoices::attention_at_once says so, the second kernel computes scores once and d_q
// as well: five products instead of seven. The blocks of keys then add to d_q in fp32, one after
// the other, so that the order of additions is a function of shapes alone. A tile of queries begins
// with the block of its own keys, the last that it sees, and ends with that of key 0, while each
// block of keys begins with its own queries. So blocks that begin together do not wait for each
// other. Blocks take numbers in the order in which they begin, the last keys of a head first, and
// wait only for smaller numbers, one of which always runs.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/attention_warpgroups.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

// Runs one block per kOwnRows queries of a head. A group of lanes has a query, a run of 16 bytes of
// its rows each, and each warp loads the rows of several queries before it adds the first, because
// the kernel is as fast as memory only with many loads in flight. delta is added within runs, in
// order, then over the lanes of the group, those half a group apart first, whether rows are aligned
// or not.
template <int kHead, bool kPacks, typename T>
TESSERA_KERNEL void AttentionStatistics(AttentionShape shape, Heads<T> d_out, Heads<T> out,
                                        const float* log_sum_exp, QueryStatistics to) {
  constexpr int kRun = kPackOf<T>, kGroup = kHead / kRun, kGroups = simt::kWarpSize / kGroup;
  constexpr int kInFlight = 4;  // queries of a group
  static_assert(kTileRows % (kInFlight * kGroups) == 0);
  const int head = simt::BlockY(), batch = simt::BlockZ();
  const int d = simt::Lane() % kGroup * kRun, left = shape.head_size - d;
  const int first = simt::BlockX() * kOwnRows + simt::WarpIndex() * kTileRows;
  const int64_t rows = (int64_t{batch} * shape.heads + head) * shape.sequence;
  for (int begin = 0; begin < kTileRows; begin += kInFlight * kGroups) {
    const int t = first + begin + simt::Lane() / kGroup;
    float a[kInFlight][kRun], b[kInFlight][kRun], lse[kInFlight];
    // Without branches, behind which later loads would wait for the values of earlier ones: what is
    // beyond the sequence or the head is loaded from their ends, and not used.
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = simt::Min(t + i * kGroups, shape.sequence - 1), column = left > 0 ? d : 0;
      lse[i] = log_sum_exp[rows + row];
      LoadRun<kPacks>(d_out.Row(batch, row, head) + column, left, a[i]);
      LoadRun<kPacks>(out.Row(batch, row, head) + column, left, b[i]);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      float delta = 0;
      for (int j = 0; j < kRun; ++j) delta = fmaf(a[i][j], b[i][j], delta);
      const bool exists = t + i * kGroups < shape.sequence;
      if (!exists || left <= 0) delta = 0;
      for (int distance = kGroup / 2; distance > 0; distance /= 2) {
        delta += simt::ShuffleXor(simt::kAllLanes, delta, distance);
      }
      const float pair[2] = {exists ? lse[i] * std::numbers::log2e_v<float> : INFINITY, delta};
      if (d == 0) simt::StorePack(pair, to.Of(shape, batch, head, t + i * kGroups));
    }
  }
}

template <typename T>
void LaunchStatistics(simt::Stream stream, const AttentionShape& shape, const Heads<T>& d_out,
                      const Heads<T>& out, const float* log_sum_exp,
                      const QueryStatistics& statistics) {
  WithBool(shape.head_size <= kMaxHeadSize / 2, [&]<bool kSmall>(std::bool_constant<kSmall>) {
    WithBool(d_out.packs && out.packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      simt::Launch<AttentionStatistics<kSmall ? kMaxHeadSize / 2 : kMaxHeadSize, kPacks, T>>(
          {shape.blocks(), shape.heads, shape.batch}, kAttentionThreads, 0, stream, shape, d_out,
          out, log_sum_exp, statistics);
    });
  });
}

template <typename Kind, typename T>
TESSERA_KERNEL void TESSERA_BOUNDS(kAttentionThreads, Kind::kBlocks)
    AttentionBackwardQueries(AttentionShape shape, Heads<T> d_out, Heads<T> q, Heads<T> k,
                             Heads<T> v, QueryStatistics statistics, Heads<T> d_q) {
  const int head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int block_query = (shape.blocks() - 1 - simt::BlockX()) * kOwnRows;
  const int own = simt::WarpIndex() * kTileRows, first_query = block_query + own;
  simt::SharedMemory memory;
  const BlockTiles<Kind> tiles(memory);
  const typename Kind::Own queries = tiles.TakeOwn(0), gradients = tiles.TakeOwn(1);
  const auto load = [&](int tile, int stage) {
    LoadTiles<Kind>({k}, shape, batch, kv_head, tile * Kind::kRows, {tiles.Get(stage, 0)});
    LoadTiles<Kind>({v}, shape, batch, kv_head, tile * Kind::kRows, {tiles.Get(stage, 1)});
  };
  LoadTiles<Kind>({q}, shape, batch, head, block_query, {queries});
  LoadTiles<Kind>({d_out}, shape, batch, head, block_query, {gradients});
  load(0, 0);
  float of_rows[2][2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    simt::LoadPack(statistics.Of(shape, batch, head, first_query + TileRow(2 * row)), of_rows[row]);
  }
  simt::WaitForCopies();
  simt::SyncThreads();
  const typename Kind::OwnRows query_rows(queries, own), gradient_rows(gradients, own);

  typename Kind::Sums sums = {};
  const int key_end = simt::Min(block_query + kOwnRows, shape.sequence);
  ForTiles<Kind::kStages>(simt::BlocksOf(key_end, Kind::kRows), load, [&](int tile, int stage) {
    const int first_key = tile * Kind::kRows;
    DropoutFactors factors(shape.key, shape.first_sample + batch);
    typename Kind::Scores scores = {}, products = {};
    MultiplyByRows(query_rows, tiles.Get(stage, 0), scores);
    MultiplyByRows(gradient_rows, tiles.Get(stage, 1), products);
    HideUnseen</*kRowsAreQueries=*/true>(first_query - first_key, scores);
#pragma unroll
    for (int n = 0; n < Kind::kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = simt::Exp2(fmaf(scores[n][i], shape.scale_log2, -of_rows[i / 2][0]));
        float a = products[n][i];
        if constexpr (Kind::kDropout) {
          const uint64_t row = shape.DropoutIndex(head, first_query + TileRow(i));
          a *= factors.Of(row + (first_key + n * kTileColumns + TileColumn(i)));
        }
        scores[n][i] = p * (a - of_rows[i / 2][1]);
      }
    }
    MultiplyByColumns(scores, tiles.Get(stage, 0), sums);
  });
  StoreHeadRows(sums, {shape.scale, shape.scale}, shape, batch, head, first_query, d_q);
}

// d_q while blocks of keys add to it. Threads have accumulators of 16 x 32, and lay them side by
// side, so that each of them loads and stores 16 bytes beside those of the next thread.
struct QuerySums {
  float* data = nullptr;     // [B, H, tiles of queries, 4, threads, 4]
  int32_t* turns = nullptr;  // [B, H, tiles]: the number of blocks that have added to a tile
  int32_t* begun = nullptr;  // the number of blocks that have begun
  int tiles = 0;             // of a head
};

// A block's part of d_q.
template <typename Kind>
class QueryPart {
 public:
  TESSERA_DEVICE QueryPart(simt::SharedMemory& memory, const QuerySums& to)
      : to_(to), gradients_{memory.Take<BFloat16>(Gradients::kElements)} {}

  // Takes dS[keys, queries] of a tile, the warp's rows from `own` on.
  TESSERA_DEVICE void Store(const typename Kind::Pairs& d_scores, int own) const {
    StoreTiles(d_scores, own, gradients_);
  }
  // Gets what the blocks of later keys have added to the tile.
  TESSERA_DEVICE void Begin(const AttentionShape& shape, int batch, int head, int query,
                            int block_key) {
    tile_ = (batch * shape.heads + head) * to_.tiles + query / Kind::kRows;
    const int turn = query / Kind::kOwn - block_key / Kind::kOwn;
    simt::AwaitTurn(to_.turns + tile_, turn);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (float& sum : sums_[n]) sum = 0;
    }
    if (turn == 0) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) simt::LoadInTurn(to_.turns + tile_, At(n), sums_[n]);
  }
  // Adds the block's part after a barrier, and writes d_q if no other block will add to it.
  template <typename T>
  TESSERA_DEVICE void Add(const AttentionShape& shape, int batch, int head, int query,
                          int block_key, const typename Kind::Own& keys, const Heads<T>& d_q) {
    const int row = simt::WarpIndex() % kWarpsOfRows * kTileRows;
    const int column = simt::WarpIndex() / kWarpsOfRows * kColumns;
    MultiplyColumnsByColumns(gradients_, row, keys, column, sums_);
    if (block_key == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = query + row + TileRow(2 * half);
        if (t >= shape.sequence) continue;
        T* const to = d_q.Row(batch, t, head) + column + TileColumn(0);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float pair[2] = {sums_[n][2 * half] * shape.scale,
                                 sums_[n][2 * half + 1] * shape.scale};
          const int d = n * kTileColumns;
          if (column + d < shape.head_size) simt::StorePack(pair, to + d);
        }
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) simt::StoreInTurn(to_.turns + tile_, sums_[n], At(n));
  }
  // Lets the next block add to the tile. Called after a barrier.
  TESSERA_DEVICE void Pass() const {
    if (tile_ >= 0 && simt::ThreadIndex() == 0) simt::PassTurn(to_.turns + tile_);
  }

 private:
  using Gradients = SharedTile<Kind::kOwn, Kind::kRows, BFloat16>;
  static constexpr int kTiles = 4, kColumns = kTiles * kTileColumns;
  static constexpr int kWarpsOfRows = Kind::kRows / kTileRows;
  static_assert(Kind::kThreads / simt::kWarpSize == kWarpsOfRows * Kind::kHead / kColumns);

  TESSERA_DEVICE float* At(int n) const {
    return to_.data + ((int64_t{tile_} * kTiles + n) * Kind::kThreads + simt::ThreadIndex()) * 4;
  }

  const QuerySums to_;
  const Gradients gradients_;
  float sums_[kTiles][4];
  int tile_ = -1;
};

struct KeyBlock {
  int batch, kv_head, first_key;
};

// Returns the block's keys: by its place in the grid, or by the number of blocks that have begun.
template <typename Kind>
TESSERA_DEVICE KeyBlock BeginKeyBlock(const AttentionShape& shape, simt::SharedMemory& memory,
                                      int32_t* begun) {
  if constexpr (Kind::kAtOnce) {
    const simt::SharedArray<int32_t> number = memory.Take<int32_t>(1);
    if (simt::ThreadIndex() == 0) number.Set(0, simt::AtomicAdd(begun, 1));
    simt::SyncThreads();
    const int blocks = simt::BlocksOf(shape.sequence, Kind::kOwn), heads = number.Get(0) / blocks;
    const int block = blocks - 1 - number.Get(0) % blocks;
    return {heads / shape.kv_heads, heads % shape.kv_heads, block * Kind::kOwn};
  } else {
    return {static_cast<int>(simt::BlockZ()), static_cast<int>(simt::BlockY()),
            static_cast<int>(simt::BlockX()) * Kind::kOwn};
  }
}

// P of a tile of scores, as pairs of bf16: half the registers.
template <typename Kind>
TESSERA_DEVICE void PackWeights(float scale_log2, const simt::SharedArray<float>& statistics,
                                const typename Kind::Scores& scores,
                                typename Kind::Pairs& weights) {
#pragma unroll
  for (int i = 0; i < Kind::kTiles * Kind::kScoreTiles; ++i) {
    float of_columns[4], p[4];
    statistics.GetPack((i % Kind::kScoreTiles * kTileColumns + TileColumn(0)) * 2, of_columns);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[j] = simt::Exp2(fmaf(scores[i][j], scale_log2, -of_columns[j % 2 * 2]));
    }
    for (const int half : {0, 1}) weights[i][half] = PairOf(p, half);
  }
}

// dS by the rounded P, of products of gradients and values.
template <typename Kind>
TESSERA_DEVICE void PackScoreGradients(const typename Kind::Pairs& weights,
                                       const simt::SharedArray<float>& statistics,
                                       const typename Kind::Scores& products,
                                       typename Kind::Pairs& d_scores) {
#pragma unroll
  for (int i = 0; i < Kind::kTiles * Kind::kScoreTiles; ++i) {
    float of_columns[4], d[4];
    statistics.GetPack((i % Kind::kScoreTiles * kTileColumns + TileColumn(0)) * 2, of_columns);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      BFloat16 p;
      p.bits = static_cast<uint16_t>(weights[i][j / 2] >> j % 2 * 16);
      d[j] = simt::ToFloat(p) * (products[i][j] - of_columns[j % 2 * 2 + 1]);
    }
    for (const int half : {0, 1}) d_scores[i][half] = PairOf(d, half);
  }
}

// Stands for QueryPart where d_q is another kernel's.
struct NoQueryPart {
  TESSERA_DEVICE NoQueryPart(simt::SharedMemory& /*memory*/, const QuerySums& /*to*/) {}
};

// Rows are keys, columns queries. Sums over the query heads of a key head, in their order.
template <typename Kind, typename T>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kBlocks)
    AttentionBackwardKeys(AttentionShape shape, Heads<T> d_out, Heads<T> q, Heads<T> k, Heads<T> v,
                          QueryStatistics statistics, Heads<T> d_k, Heads<T> d_v, QuerySums sums,
                          Heads<T> d_q) {
  constexpr int kStatistics = 2 * Kind::kRows;
  simt::SharedMemory memory;
  const KeyBlock block = BeginKeyBlock<Kind>(shape, memory, sums.begun);
  const int batch = block.batch, kv_head = block.kv_head, block_key = block.first_key;
  const int own = simt::WarpIndex() * Kind::kTiles * kTileRows, first_key = block_key + own;
  const BlockTiles<Kind> tiles(memory);
  const typename Kind::Own keys = tiles.TakeOwn(0), values = tiles.TakeOwn(1);
  const simt::SharedArray<float> all_staged = memory.Take<float>(Kind::kStages * kStatistics);
  std::conditional_t<Kind::kAtOnce, QueryPart<Kind>, NoQueryPart> query_part(memory, sums);
  const int group = shape.heads / shape.kv_heads;
  // Queries before the block see none of its keys. Tiles of a head follow those of the one before.
  const int tiles_of_head = simt::BlocksOf(shape.sequence - block_key, Kind::kRows);
  int head = kv_head * group, first_query = block_key;
  const auto go_on = [&](int* of_head, int* query) {
    *query += Kind::kRows;
    if (*query < shape.sequence) return;
    *query = block_key;
    ++*of_head;
  };
  const auto load_at = [&](int of_head, int query, int stage) {
    LoadTiles<Kind>({q}, shape, batch, of_head, query, {tiles.Get(stage, 0)});
    LoadTiles<Kind>({d_out}, shape, batch, of_head, query, {tiles.Get(stage, 1)});
    if (const int t = simt::ThreadIndex() * 2; t < Kind::kRows) {
      const float* from = statistics.Of(shape, batch, of_head, query + t);
      if constexpr (Kind::kAtOnce) {  // takes fewer registers
        const int tile = (batch * shape.heads + of_head) * sums.tiles + query / Kind::kRows;
        from = statistics.data + int64_t{tile} * kStatistics + 2 * t;
      }
      all_staged.CopyPackAsync(stage * kStatistics + 2 * t, from, true);
    }
  };
  // With two stages, while the tile before is computed.
  const auto load = [&](int /*tile*/, int stage) {
    int of_head = head, query = first_query;
    if constexpr (Kind::kStages == 2) go_on(&of_head, &query);
    load_at(of_head, query, stage);
  };
  LoadTiles<Kind>({k}, shape, batch, kv_head, block_key, {keys});
  LoadTiles<Kind>({v}, shape, batch, kv_head, block_key, {values});
  load_at(head, first_query, 0);
  simt::WaitForCopies();
  simt::SyncThreads();
  const typename Kind::OwnRows key_rows(keys, own), value_rows(values, own);

  DropoutFactors factors(shape.key, shape.first_sample + batch);
  typename Kind::Sums d_key_sums = {}, d_value_sums = {};
  ForTiles<Kind::kStages>(group * tiles_of_head, load, [&](int /*tile*/, int stage) {
    typename Kind::Scores scores = {}, products = {};
    MultiplyByRows(key_rows, tiles.Get(stage, 0), scores);
    HideUnseen</*kRowsAreQueries=*/false, Kind::kTiles>(first_query - first_key, scores);
    const simt::SharedArray<float> staged = all_staged.Slice(stage * kStatistics, kStatistics);
    if constexpr (Kind::kAtOnce) {
      typename Kind::Pairs weights, d_scores;
      PackWeights<Kind>(shape.scale_log2, staged, scores, weights);
      MultiplyByRows(value_rows, tiles.Get(stage, 1), products);
      query_part.Pass();
      PackScoreGradients<Kind>(weights, staged, products, d_scores);
      MultiplyByColumns(weights, tiles.Get(stage, 1), d_value_sums);
      query_part.Store(d_scores, own);
      MultiplyByColumns(d_scores, tiles.Get(stage, 0), d_key_sums);
      query_part.Begin(shape, batch, head, first_query, block_key);
      simt::SyncThreads();
      query_part.Add(shape, batch, head, first_query, block_key, keys, d_q);
      return go_on(&head, &first_query);
    }
    MultiplyByRows(value_rows, tiles.Get(stage, 1), products);
#pragma unroll
    for (int n = 0; n < Kind::kScoreTiles; ++n) {
      float of_columns[4];  // two of each
      staged.GetPack((n * kTileColumns + TileColumn(0)) * 2, of_columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = simt::Exp2(fmaf(scores[n][i], shape.scale_log2, -of_columns[i % 2 * 2]));
        float factor = 1.0f;
        if constexpr (Kind::kDropout) {
          const uint64_t row =
              shape.DropoutIndex(head, first_query + n * kTileColumns + TileColumn(i));
          factor = factors.Of(row + (first_key + TileRow(i)));
        }
        scores[n][i] = p * factor;
        products[n][i] = p * (products[n][i] * factor - of_columns[i % 2 * 2 + 1]);
      }
    }
    MultiplyByColumns(scores, tiles.Get(stage, 1), d_value_sums);
    MultiplyByColumns(products, tiles.Get(stage, 0), d_key_sums);
    go_on(&head, &first_query);
  });
  if constexpr (Kind::kAtOnce) {
    simt::SyncThreads();
    query_part.Pass();
  }
  StoreOwnRows<Kind::kTiles>(d_key_sums, shape.scale, shape, batch, kv_head, first_key, d_k);
  StoreOwnRows<Kind::kTiles>(d_value_sums, 1.0f, shape, batch, kv_head, first_key, d_v);
}

// Returns what the kernel at once is compiled for: aligned bf16 without dropout.
bool CanRunAtOnce(const ops::AttentionBackward& op) {
  const auto packs = [](const TensorView& x) { return AsHeads<BFloat16>(x).packs; };
  return op.q.dtype() == DType::kBF16 && op.options.dropout_probability == 0 && packs(op.q) &&
         packs(op.k) && packs(op.v) && packs(op.d_out) && packs(op.d_q);
}

// `zero` sets this number of integers from an address on to zero.
template <int kHead, typename Zero>
void LaunchAtOnce(simt::Stream stream, const AttentionShape& shape,
                  const ops::AttentionBackward& op, const QueryStatistics& statistics, Zero zero) {
  using T = BFloat16;
  using Kind = AttentionKind<AttentionPass::kBackwardAtOnce, kHead, /*kDropoutIsOn=*/false, T>;
  const int64_t queries = shape.batch * shape.heads * shape.blocks() * kOwnRows;
  QuerySums sums;
  sums.data = statistics.data + queries * 2;
  sums.turns = reinterpret_cast<int32_t*>(sums.data + queries * kHead);
  sums.begun = sums.turns + queries / Kind::kRows;
  sums.tiles = static_cast<int>(shape.blocks()) * kOwnRows / Kind::kRows;
  zero(sums.turns, queries / Kind::kRows + 1);
  const int64_t blocks = simt::BlocksOf(shape.sequence, Kind::kOwn);
  simt::Launch<AttentionBackwardKeys<Kind, T>>(
      {blocks * shape.kv_heads * shape.batch}, Kind::kThreads, Kind::kSharedBytes, stream, shape,
      AsHeads<T>(op.d_out), AsHeads<T>(op.q), AsHeads<T>(op.k), AsHeads<T>(op.v), statistics,
      AsHeads<T>(op.d_k), AsHeads<T>(op.d_v), sums, AsHeads<T>(op.d_q));
}

}  // namespace

void DeviceKernels::Run(const ops::AttentionBackward& op) {
  const Operation here(*this, "AttentionBackward", op.d_out, op.q, op.k, op.v);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  const int64_t blocks = shape.blocks(), heads = shape.heads, batch = shape.batch;
  const bool warpgroups = attention_.gradients_by_warpgroups && CanAttendByWarpgroups(op);
  const bool at_once = !warpgroups && attention_.at_once && CanRunAtOnce(op);
  const int64_t bytes =
      AttentionScratchBytes(batch * heads, shape.sequence, shape.head_size, at_once);
  const QueryStatistics statistics = {static_cast<float*>(Scratch(bytes))};
  if (statistics.data == nullptr) return;
  WithType(op.q.dtype(), [&]<typename T>(T) {
    const Heads<T> d_out = AsHeads<T>(op.d_out), q = AsHeads<T>(op.q), k = AsHeads<T>(op.k),
                   v = AsHeads<T>(op.v);
    LaunchStatistics(stream(), shape, d_out, AsHeads<T>(op.out), op.log_sum_exp.as<const float>(),
                     statistics);
    if (at_once || warpgroups) return;
    WithAttentionKind<AttentionPass::kBackwardQueries, T>(shape, [&]<typename Kind>() {
      simt::Launch<AttentionBackwardQueries<Kind, T>>({blocks, heads, batch}, kAttentionThreads,
                                                      Kind::kSharedBytes, stream(), shape, d_out, q,
                                                      k, v, statistics, AsHeads<T>(op.d_q));
    });
    WithAttentionKind<AttentionPass::kBackwardKeys, T>(shape, [&]<typename Kind>() {
      simt::Launch<AttentionBackwardKeys<Kind, T>>(
          {blocks, shape.kv_heads, batch}, kAttentionThreads, Kind::kSharedBytes, stream(), shape,
          d_out, q, k, v, statistics, AsHeads<T>(op.d_k), AsHeads<T>(op.d_v), QuerySums(),
          AsHeads<T>(op.d_q));
    });
  });
  if (warpgroups) LaunchAttentionByWarpgroups(stream(), shape, op, statistics);
  if (!at_once) return;
  const auto zero = [&](int32_t* from, int64_t count) {
    Fill({TensorView(from, DType::kF32, {count}), 0});
  };
  shape.head_size <= kMaxHeadSize / 2
      ? LaunchAtOnce<kMaxHeadSize / 2>(stream(), shape, op, statistics, zero)
      : LaunchAtOnce<kMaxHeadSize>(stream(), shape, op, statistics, zero);
}

}  // namespace tessera::cuda
