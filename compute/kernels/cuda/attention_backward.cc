// With P[t,s] = exp(S[t,s] - log_sum_exp[t]), M the dropout factors, A[t,s] = M[t,s] d_out[t] v[s],
// delta[t] = d_out[t] out[t] and dS[t,s] = P[t,s] (A[t,s] - delta[t]):
//   d_q[t] = scale sum over s of dS[t,s] k[s]
//   d_k[s] = scale sum over t of dS[t,s] q[t]      d_v[s] = sum over t of P[t,s] M[t,s] d_out[t]
// One kernel computes d_q, block by block of queries, another d_k and d_v, block by block of keys.
// Scores are computed in both, so that no two blocks add to the same element.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

// [B, H, T, 2]: log_sum_exp[t] log2(e), and delta[t]. T is rounded up to blocks; a query beyond T
// has infinity and 0, which make its P and dS 0.
struct QueryStatistics {
  float* data;

  TESSERA_DEVICE float* Of(const AttentionShape& shape, int batch, int head, int t) const {
    const int64_t row = int64_t{batch} * shape.heads + head;
    return data + (row * shape.blocks() * kOwnRows + t) * 2;
  }
};

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
    LoadTiles({k}, shape, batch, kv_head, tile * Kind::kRows, {tiles.Get(stage, 0)});
    LoadTiles({v}, shape, batch, kv_head, tile * Kind::kRows, {tiles.Get(stage, 1)});
  };
  LoadTiles({q}, shape, batch, head, block_query, {queries});
  LoadTiles({d_out}, shape, batch, head, block_query, {gradients});
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

// Rows are keys, columns queries. Sums over the query heads of a key head, in their order.
template <typename Kind, typename T>
TESSERA_KERNEL void TESSERA_BOUNDS(kAttentionThreads, Kind::kBlocks)
    AttentionBackwardKeys(AttentionShape shape, Heads<T> d_out, Heads<T> q, Heads<T> k, Heads<T> v,
                          QueryStatistics statistics, Heads<T> d_k, Heads<T> d_v) {
  constexpr int kStatistics = 2 * Kind::kRows;
  const int kv_head = simt::BlockY(), batch = simt::BlockZ();
  const int block_key = simt::BlockX() * kOwnRows;
  const int own = simt::WarpIndex() * kTileRows, first_key = block_key + own;
  simt::SharedMemory memory;
  const BlockTiles<Kind> tiles(memory);
  const typename Kind::Own keys = tiles.TakeOwn(0), values = tiles.TakeOwn(1);
  const simt::SharedArray<float> all_staged = memory.Take<float>(Kind::kStages * kStatistics);
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
    LoadTiles({q}, shape, batch, of_head, query, {tiles.Get(stage, 0)});
    LoadTiles({d_out}, shape, batch, of_head, query, {tiles.Get(stage, 1)});
    if (const int t = simt::ThreadIndex() * 2; t < Kind::kRows) {
      all_staged.CopyPackAsync(stage * kStatistics + 2 * t,
                               statistics.Of(shape, batch, of_head, query + t), true);
    }
  };
  // With two stages, while the tile before is computed.
  const auto load = [&](int /*tile*/, int stage) {
    int of_head = head, query = first_query;
    if constexpr (Kind::kStages == 2) go_on(&of_head, &query);
    load_at(of_head, query, stage);
  };
  LoadTiles({k}, shape, batch, kv_head, block_key, {keys});
  LoadTiles({v}, shape, batch, kv_head, block_key, {values});
  load_at(head, first_query, 0);
  simt::WaitForCopies();
  simt::SyncThreads();
  const typename Kind::OwnRows key_rows(keys, own), value_rows(values, own);

  DropoutFactors factors(shape.key, shape.first_sample + batch);
  typename Kind::Sums d_key_sums = {}, d_value_sums = {};
  ForTiles<Kind::kStages>(group * tiles_of_head, load, [&](int /*tile*/, int stage) {
    typename Kind::Scores scores = {}, products = {};
    MultiplyByRows(key_rows, tiles.Get(stage, 0), scores);
    HideUnseen</*kRowsAreQueries=*/false>(first_query - first_key, scores);
    MultiplyByRows(value_rows, tiles.Get(stage, 1), products);
    const simt::SharedArray<float> staged = all_staged.Slice(stage * kStatistics, kStatistics);
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
  StoreHeadRows(d_key_sums, {shape.scale, shape.scale}, shape, batch, kv_head, first_key, d_k);
  StoreHeadRows(d_value_sums, {1.0f, 1.0f}, shape, batch, kv_head, first_key, d_v);
}

}  // namespace

void DeviceKernels::Run(const ops::AttentionBackward& op) {
  const Operation here(*this, "AttentionBackward", op.d_out, op.q, op.k, op.v);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  const int64_t blocks = shape.blocks(), heads = shape.heads, batch = shape.batch;
  const QueryStatistics statistics = {Scratch<float>(batch * heads * blocks * kOwnRows * 2)};
  if (statistics.data == nullptr) return;
  WithType(op.q.dtype(), [&]<typename T>(T) {
    const Heads<T> d_out = AsHeads<T>(op.d_out), q = AsHeads<T>(op.q), k = AsHeads<T>(op.k),
                   v = AsHeads<T>(op.v);
    LaunchStatistics(stream(), shape, d_out, AsHeads<T>(op.out), op.log_sum_exp.as<const float>(),
                     statistics);
    WithAttentionKind<AttentionPass::kBackwardQueries, T>(shape, [&]<typename Kind>() {
      simt::Launch<AttentionBackwardQueries<Kind, T>>({blocks, heads, batch}, kAttentionThreads,
                                                      Kind::kSharedBytes, stream(), shape, d_out, q,
                                                      k, v, statistics, AsHeads<T>(op.d_q));
    });
    WithAttentionKind<AttentionPass::kBackwardKeys, T>(shape, [&]<typename Kind>() {
      simt::Launch<AttentionBackwardKeys<Kind, T>>(
          {blocks, shape.kv_heads, batch}, kAttentionThreads, Kind::kSharedBytes, stream(), shape,
          d_out, q, k, v, statistics, AsHeads<T>(op.d_k), AsHeads<T>(op.d_v));
    });
  });
}

}  // namespace tessera::cuda
