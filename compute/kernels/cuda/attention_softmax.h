#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_SOFTMAX_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_SOFTMAX_H_

// The softmax of attention's forward kernels over tiles of keys, with a running maximum and sum:
// Dao, "FlashAttention-2" (2023).

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

// The two rows of a tile that a lane has elements of: their running maximum, and this lane's part
// of the sum of exp(score - maximum). Maxima are of scores before scaling.
struct RowState {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

// Combines the values of a row's four lanes.
template <typename Combine>
TESSERA_DEVICE float OverRow(float value, Combine combine) {
  return simt::CombineLanes<1, 2>(simt::kAllLanes, value, combine);
}

// Turns scores into exp(score - maximum); earlier sums are multiplied by `corrections`.
template <int kTiles>
TESSERA_DEVICE void UpdateSoftmax(float scale_log2, float (&scores)[kTiles][4], RowState& state,
                                  float (&corrections)[2]) {
  float max[2] = {state.max[0], state.max[1]};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {  // pairs first: of them, none waits for the one before
      max[row] = fmaxf(max[row], fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
    }
  }
  float scaled[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Finite: every row sees key 0, in the first tile.
    max[row] = OverRow(max[row], [](float a, float b) { return fmaxf(a, b); });
    corrections[row] = simt::Exp2((state.max[row] - max[row]) * scale_log2);
    scaled[row] = max[row] * scale_log2;
    state.max[row] = max[row];
    state.sum[row] *= corrections[row];
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = simt::Exp2(fmaf(scores[n][i], scale_log2, -scaled[i / 2]));
      state.sum[i / 2] += scores[n][i];
    }
  }
}

// Multiplies each element of a tile by its row's correction.
template <int kTiles>
TESSERA_DEVICE void CorrectSums(const float (&corrections)[2], float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] *= corrections[i / 2];
  }
}

// Writes the warp's 16 rows of the output and of log_sum_exp[B, H, T], from `first_query` on.
template <int kTiles, typename T>
TESSERA_DEVICE void StoreAttention(const float (&sums)[kTiles][4], const RowState& state,
                                   const AttentionShape& shape, int batch, int head,
                                   int first_query, const Heads<T>& out, float* log_sum_exp) {
  float factors[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float sum = OverRow(state.sum[row], [](float a, float b) { return a + b; });
    factors[row] = 1.0f / sum;
    const int t = first_query + TileRow(2 * row);
    if (simt::Lane() % 4 == 0 && t < shape.sequence) {
      log_sum_exp[(int64_t{batch} * shape.heads + head) * shape.sequence + t] =
          fmaf(state.max[row], shape.scale, logf(sum));
    }
  }
  StoreHeadRows(sums, factors, shape, batch, head, first_query, out);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_SOFTMAX_H_
