// Flash attention: Dao, "FlashAttention-2" (2023). With S[t,s] = scale q[t] k[s], out[t] = sum over
// s <= t of softmax(S[t])[s] v[s], over tiles of keys, with a running maximum and sum.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

namespace {

// The two rows of a tile that a lane has elements of: their running maximum, and this lane's part
// of the sum of exp(score - maximum).
struct RowState {
  float max[2];
  float sum[2];
};

// The largest value of a row, over the four lanes that share it.
TESSERA_DEVICE float RowMax(float value) {
  for (int distance = 1; distance < 4; distance *= 2) {
    value = fmaxf(value, simt::ShuffleXor(simt::kAllLanes, value, distance));
  }
  return value;
}

TESSERA_DEVICE float RowSum(float value) {
  for (int distance = 1; distance < 4; distance *= 2) {
    value += simt::ShuffleXor(simt::kAllLanes, value, distance);
  }
  return value;
}

// Scores become exp(score - maximum); `corrections` is what earlier sums are multiplied by.
TESSERA_DEVICE void UpdateSoftmax(const AttentionShape& shape, int64_t first_query,
                                  int64_t first_key, float (&scores)[kScoreTiles][4],
                                  RowState& state, float (&corrections)[2]) {
  float max[2] = {state.max[0], state.max[1]};
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = first_key + n * kTileColumns + TileColumn(i);
      const bool seen = key <= first_query + TileRow(i) && key < shape.sequence;
      scores[n][i] = seen ? scores[n][i] * shape.scale : -INFINITY;
      max[i / 2] = fmaxf(max[i / 2], scores[n][i]);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    max[row] = RowMax(max[row]);  // finite: every row sees key 0, in the first tile
    corrections[row] = expf(state.max[row] - max[row]);
    state.max[row] = max[row];
    state.sum[row] *= corrections[row];
  }
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = expf(scores[n][i] - max[i / 2]);
      state.sum[i / 2] += scores[n][i];
    }
  }
}

TESSERA_DEVICE void DropScores(const AttentionShape& shape, int64_t batch, int64_t head,
                               int64_t first_query, int64_t first_key,
                               float (&scores)[kScoreTiles][4]) {
  DropoutFactors factors(shape.key, shape.first_sample + batch);
  for (int n = 0; n < kScoreTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int64_t key = first_key + n * kTileColumns + TileColumn(i);
      const uint64_t row = shape.DropoutIndex(head, first_query + TileRow(i));
      scores[n][i] *= factors.Of(row + static_cast<uint64_t>(key));
    }
  }
}

// One block for each 64 queries, head and sample.
template <int kHead, typename T>
TESSERA_KERNEL void AttentionForwardTiles(AttentionShape shape, Heads<T> q, Heads<T> k, Heads<T> v,
                                          Heads<T> out, float* log_sum_exp) {
  const int64_t head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int64_t block_query = simt::BlockX() * kOwnRows;
  const int64_t first_query = block_query + simt::WarpIndex() * kTileRows;
  simt::SharedMemory memory;
  const HeadTile<kHead, T> queries = TakeTile<kHead, T>(memory, kOwnRows);
  const HeadTile<kHead, T> keys = TakeTile<kHead, T>(memory, kOtherRows);
  const HeadTile<kHead, T> values = TakeTile<kHead, T>(memory, kOtherRows);
  const SharedMatrix<T> weights = TakeScores<T>(memory);
  queries.Load(q, shape, batch, head, block_query);

  float sums[kHead / kTileColumns][4] = {};
  RowState state = {{-INFINITY, -INFINITY}, {0, 0}};
  const int64_t behind = block_query + kOwnRows;
  const int64_t key_end = behind < shape.sequence ? behind : shape.sequence;
  for (int64_t first_key = 0; first_key < key_end; first_key += kOtherRows) {
    simt::SyncThreads();
    keys.Load(k, shape, batch, kv_head, first_key);
    values.Load(v, shape, batch, kv_head, first_key);
    simt::SyncThreads();
    float scores[kScoreTiles][4] = {}, corrections[2];
    WarpMultiply(queries.OverHead(simt::WarpIndex() * kTileRows), keys.OverHead(), kHead, scores);
    UpdateSoftmax(shape, first_query, first_key, scores, state, corrections);
    if (shape.dropout) DropScores(shape, batch, head, first_query, first_key, scores);
    StoreScores(scores, weights);
#pragma unroll
    for (int n = 0; n < kHead / kTileColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= corrections[i / 2];
    }
    simt::SyncWarp();
    WarpMultiply(weights, values.OverRows(), kOtherRows, sums);
  }

  float factors[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float sum = RowSum(state.sum[row]);
    factors[row] = 1.0f / sum;
    const int64_t t = first_query + TileRow(2 * row);
    if (simt::Lane() % 4 == 0 && t < shape.sequence) {
      log_sum_exp[(batch * shape.heads + head) * shape.sequence + t] = state.max[row] + logf(sum);
    }
  }
  StoreHeadRows<kHead>(sums, factors, shape, batch, head, first_query, out);
}

}  // namespace

void DeviceKernels::Run(const ops::AttentionForward& op) {
  const Operation here("AttentionForward", op.q, op.k, op.v, op.out);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  WithType(op.q.dtype(), [&]<typename T>(T) {
    WithHeadSize(shape.head_size, [&]<int kHead>(HeadSize<kHead>) {
      const int64_t shared_bytes = ForwardElements(kHead) * static_cast<int64_t>(sizeof(T));
      const simt::Grid grid = {simt::BlocksOf(shape.sequence, kOwnRows), shape.heads, shape.batch};
      simt::Launch<AttentionForwardTiles<kHead, T>>(
          grid, kAttentionThreads, shared_bytes, stream(), shape, AsHeads<T>(op.q),
          AsHeads<T>(op.k), AsHeads<T>(op.v), AsHeads<T>(op.out), op.log_sum_exp.as<float>());
    });
  });
}

}  // namespace tessera::cuda
