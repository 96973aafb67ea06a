// With P[t,s] = exp(S[t,s] - log_sum_exp[t]), M the dropout factors, A[t,s] = M[t,s] d_out[t] v[s],
// delta[t] = d_out[t] out[t] and dS[t,s] = P[t,s] (A[t,s] - delta[t]):
//   d_q[t] = scale sum over s of dS[t,s] k[s]
//   d_k[s] = scale sum over t of dS[t,s] q[t]      d_v[s] = sum over t of P[t,s] M[t,s] d_out[t]
// One kernel computes d_q, block by block of queries, another d_k and d_v, block by block of keys.
// Scores are computed in both, so that no two blocks add to the same element.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/norm_rows.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

// deltas[b,h,t], one warp a row.
template <typename T>
TESSERA_KERNEL void AttentionDeltas(AttentionShape shape, Heads<T> d_out, Heads<T> out,
                                    float* deltas) {
  const int64_t row = WarpRow();
  if (row >= shape.batch * shape.heads * shape.sequence) return;
  const int64_t t = row % shape.sequence, head = row / shape.sequence % shape.heads;
  const int64_t batch = row / shape.sequence / shape.heads;
  const T* const a = d_out.Row(batch, t, head);
  const T* const b = out.Row(batch, t, head);
  float sum = 0;
  for (int d = simt::Lane(); d < shape.head_size; d += simt::kWarpSize) {
    sum = fmaf(simt::ToFloat(a[d]), simt::ToFloat(b[d]), sum);
  }
  sum = simt::WarpSum(sum);
  if (simt::Lane() == 0) deltas[row] = sum;
}

// The probability of (query t, key s) from its product of q and k; 0 where the query does not see
// the key.
TESSERA_DEVICE float Probability(const AttentionShape& shape, int64_t t, int64_t s, float product,
                                 float log_sum_exp) {
  return s <= t && t < shape.sequence ? expf(fmaf(product, shape.scale, -log_sum_exp)) : 0.0f;
}

template <int kHead, typename T>
TESSERA_KERNEL void AttentionBackwardQueries(AttentionShape shape, Heads<T> d_out, Heads<T> q,
                                             Heads<T> k, Heads<T> v, const float* log_sum_exp,
                                             const float* deltas, Heads<T> d_q) {
  const int64_t head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int64_t block_query = simt::BlockX() * kOwnRows;
  const int own = simt::WarpIndex() * kTileRows;
  simt::SharedMemory memory;
  const HeadTile<kHead, T> queries = TakeTile<kHead, T>(memory, kOwnRows);
  const HeadTile<kHead, T> gradients = TakeTile<kHead, T>(memory, kOwnRows);
  const HeadTile<kHead, T> keys = TakeTile<kHead, T>(memory, kOtherRows);
  const HeadTile<kHead, T> values = TakeTile<kHead, T>(memory, kOtherRows);
  const SharedMatrix<T> d_scores = TakeScores<T>(memory);
  queries.Load(q, shape, batch, head, block_query);
  gradients.Load(d_out, shape, batch, head, block_query);
  float lse[2], delta[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int64_t t = block_query + own + TileRow(2 * row);
    const int64_t at = (batch * shape.heads + head) * shape.sequence + t;
    lse[row] = t < shape.sequence ? log_sum_exp[at] : 0.0f;
    delta[row] = t < shape.sequence ? deltas[at] : 0.0f;
  }

  DropoutFactors factors(shape.key, shape.first_sample + batch);
  float sums[kHead / kTileColumns][4] = {};
  const int64_t behind = block_query + kOwnRows;
  const int64_t key_end = behind < shape.sequence ? behind : shape.sequence;
  for (int64_t first_key = 0; first_key < key_end; first_key += kOtherRows) {
    simt::SyncThreads();
    keys.Load(k, shape, batch, kv_head, first_key);
    values.Load(v, shape, batch, kv_head, first_key);
    simt::SyncThreads();
    float scores[kScoreTiles][4] = {}, products[kScoreTiles][4] = {};
    WarpMultiply(queries.OverHead(own), keys.OverHead(), kHead, scores);
    WarpMultiply(gradients.OverHead(own), values.OverHead(), kHead, products);
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t t = block_query + own + TileRow(i);
        const int64_t s = first_key + n * kTileColumns + TileColumn(i);
        float a = products[n][i];
        if (shape.dropout) a *= factors.Of(shape.DropoutIndex(head, t) + static_cast<uint64_t>(s));
        scores[n][i] = Probability(shape, t, s, scores[n][i], lse[i / 2]) * (a - delta[i / 2]);
      }
    }
    StoreScores(scores, d_scores);
    simt::SyncWarp();
    WarpMultiply(d_scores, keys.OverRows(), kOtherRows, sums);
  }
  StoreHeadRows<kHead>(sums, {shape.scale, shape.scale}, shape, batch, head, block_query + own,
                       d_q);
}

// Rows are keys, columns queries. Sums over the query heads of a key head, in their order.
template <int kHead, typename T>
TESSERA_KERNEL void AttentionBackwardKeys(AttentionShape shape, Heads<T> d_out, Heads<T> q,
                                          Heads<T> k, Heads<T> v, const float* log_sum_exp,
                                          const float* deltas, Heads<T> d_k, Heads<T> d_v) {
  const int64_t kv_head = simt::BlockY(), batch = simt::BlockZ();
  const int64_t block_key = simt::BlockX() * kOwnRows;
  const int own = simt::WarpIndex() * kTileRows;
  simt::SharedMemory memory;
  const HeadTile<kHead, T> keys = TakeTile<kHead, T>(memory, kOwnRows);
  const HeadTile<kHead, T> values = TakeTile<kHead, T>(memory, kOwnRows);
  const HeadTile<kHead, T> queries = TakeTile<kHead, T>(memory, kOtherRows);
  const HeadTile<kHead, T> gradients = TakeTile<kHead, T>(memory, kOtherRows);
  const SharedMatrix<T> weights = TakeScores<T>(memory);
  const SharedMatrix<T> d_scores = TakeScores<T>(memory);
  keys.Load(k, shape, batch, kv_head, block_key);
  values.Load(v, shape, batch, kv_head, block_key);

  DropoutFactors factors(shape.key, shape.first_sample + batch);
  float d_key_sums[kHead / kTileColumns][4] = {}, d_value_sums[kHead / kTileColumns][4] = {};
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const int64_t row = (batch * shape.heads + head) * shape.sequence;
    // Queries before the block see none of its keys.
    for (int64_t first = block_key; first < shape.sequence; first += kOtherRows) {
      simt::SyncThreads();
      queries.Load(q, shape, batch, head, first);
      gradients.Load(d_out, shape, batch, head, first);
      simt::SyncThreads();
      float scores[kScoreTiles][4] = {}, products[kScoreTiles][4] = {};
      WarpMultiply(keys.OverHead(own), queries.OverHead(), kHead, scores);
      WarpMultiply(values.OverHead(own), gradients.OverHead(), kHead, products);
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t s = block_key + own + TileRow(i);
          const int64_t t = first + n * kTileColumns + TileColumn(i);
          const bool inside = t < shape.sequence;
          const float p =
              Probability(shape, t, s, scores[n][i], inside ? log_sum_exp[row + t] : 0.0f);
          float factor = 1.0f;
          if (shape.dropout) {
            factor = factors.Of(shape.DropoutIndex(head, t) + static_cast<uint64_t>(s));
          }
          scores[n][i] = p * factor;
          products[n][i] = p * (products[n][i] * factor - (inside ? deltas[row + t] : 0.0f));
        }
      }
      StoreScores(scores, weights);
      StoreScores(products, d_scores);
      simt::SyncWarp();
      WarpMultiply(weights, gradients.OverRows(), kOtherRows, d_value_sums);
      WarpMultiply(d_scores, queries.OverRows(), kOtherRows, d_key_sums);
    }
  }
  StoreHeadRows<kHead>(d_key_sums, {shape.scale, shape.scale}, shape, batch, kv_head,
                       block_key + own, d_k);
  StoreHeadRows<kHead>(d_value_sums, {1.0f, 1.0f}, shape, batch, kv_head, block_key + own, d_v);
}

}  // namespace

void DeviceKernels::Run(const ops::AttentionBackward& op) {
  const Operation here("AttentionBackward", op.d_out, op.q, op.k, op.v);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  const int64_t rows = shape.batch * shape.heads * shape.sequence;
  float* const deltas = static_cast<float*>(Scratch(rows * static_cast<int64_t>(sizeof(float))));
  if (deltas == nullptr) return;
  WithType(op.q.dtype(), [&]<typename T>(T) {
    simt::Launch<AttentionDeltas<T>>(WarpRowGrid(rows), kWarpRowThreads, 0, stream(), shape,
                                     AsHeads<T>(op.d_out), AsHeads<T>(op.out), deltas);
    WithHeadSize(shape.head_size, [&]<int kHead>(HeadSize<kHead>) {
      constexpr int64_t kElement = sizeof(T);
      const int64_t blocks = simt::BlocksOf(shape.sequence, kOwnRows);
      const float* const lse = op.log_sum_exp.as<float>();
      simt::Launch<AttentionBackwardQueries<kHead, T>>(
          {blocks, shape.heads, shape.batch}, kAttentionThreads,
          BackwardQueriesElements(kHead) * kElement, stream(), shape, AsHeads<T>(op.d_out),
          AsHeads<T>(op.q), AsHeads<T>(op.k), AsHeads<T>(op.v), lse,
          static_cast<const float*>(deltas), AsHeads<T>(op.d_q));
      simt::Launch<AttentionBackwardKeys<kHead, T>>(
          {blocks, shape.kv_heads, shape.batch}, kAttentionThreads,
          BackwardKeysElements(kHead) * kElement, stream(), shape, AsHeads<T>(op.d_out),
          AsHeads<T>(op.q), AsHeads<T>(op.k), AsHeads<T>(op.v), lse,
          static_cast<const float*>(deltas), AsHeads<T>(op.d_k), AsHeads<T>(op.d_v));
    });
  });
}

}  // namespace tessera::cuda
