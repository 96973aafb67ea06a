#ifndef TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_

// Products of small matrices by one warp: of bf16 on tensor cores, of fp32 by multiply-adds.
//
// An accumulator tile is 16 rows by 8 columns, four elements a lane: element i is in row
// TileRow(i), column TileColumn(i), as PTX defines it for mma.m16n8k16.

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/bfloat16.h"

namespace tessera::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 8;
inline constexpr int kTileInner = 16;  // inner dims are multiples of this

TESSERA_DEVICE int TileRow(int i) { return simt::Lane() / 4 + i / 2 * 8; }
TESSERA_DEVICE int TileColumn(int i) { return simt::Lane() % 4 * 2 + i % 2; }

// A matrix in shared memory: element (i, k), k the inner dim, is at i * stride + k * inner_stride.
// Where inner_stride is 1, stride is even.
template <typename T>
struct SharedMatrix {
  simt::SharedArray<T> elements;
  int stride;
  int inner_stride;

  TESSERA_DEVICE T Get(int i, int k) const { return elements.Get(i * stride + k * inner_stride); }
};

// Elements (i, k) and (i, k + 1), k even, the first in the low half.
TESSERA_DEVICE uint32_t GetInnerPair(const SharedMatrix<BFloat16>& matrix, int i, int k) {
  if (matrix.inner_stride == 1) return matrix.elements.GetPair(i * matrix.stride + k);
  const uint32_t low = matrix.Get(i, k).bits, high = matrix.Get(i, k + 1).bits;
  return high << 16 | low;
}

// What a lane holds of one product of 16 x 16 by 16 x 8.
struct MmaOperands {
  uint32_t a[4];  // rows L/4 and L/4 + 8 at inner 2(L%4), then the same at inner 2(L%4) + 8
  uint32_t b[2];  // column L/4 at inner 2(L%4) and 2(L%4) + 8
  float sums[4];
};

#ifdef __CUDACC__

TESSERA_DEVICE void MmaSync(MmaOperands& x) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(x.sums[0]), "+f"(x.sums[1]), "+f"(x.sums[2]), "+f"(x.sums[3])
      : "r"(x.a[0]), "r"(x.a[1]), "r"(x.a[2]), "r"(x.a[3]), "r"(x.b[0]), "r"(x.b[1]));
}

#else

namespace internal {

inline float Half(uint32_t pair, int k) {
  BFloat16 value;
  value.bits = static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16);
  return static_cast<float>(value);
}

// Gathers the operands of all lanes, as the instruction distributes them, and multiplies them.
inline void MultiplyLanes(const void* const inputs[simt::kWarpSize],
                          void* const outputs[simt::kWarpSize]) {
  float a[kTileRows][kTileInner], b[kTileInner][kTileColumns];
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    const MmaOperands& x = *static_cast<const MmaOperands*>(inputs[lane]);
    const int group = lane / 4, inner = lane % 4 * 2;
    for (int k = 0; k < 2; ++k) {
      for (int i = 0; i < 4; ++i) a[group + i % 2 * 8][inner + i / 2 * 8 + k] = Half(x.a[i], k);
      for (int i = 0; i < 2; ++i) b[inner + i * 8 + k][group] = Half(x.b[i], k);
    }
  }
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    MmaOperands& x = *static_cast<MmaOperands*>(outputs[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < kTileInner; ++k) x.sums[i] += a[row][k] * b[k][column];
    }
  }
}

}  // namespace internal

// The twin of the instruction.
inline void MmaSync(MmaOperands& x) {
  const MmaOperands input = x;
  simt::internal::MeetLanes("a product", simt::kAllLanes, &input, &x, internal::MultiplyLanes,
                            simt::Site::Here());
}

#endif

// sums[n] += a[16, inner] b[inner, columns 8n to 8n + 8], where the rows of `b` are its columns:
// element (n, k). All lanes of the warp take part.
template <int kTiles>
TESSERA_DEVICE void WarpMultiply(const SharedMatrix<BFloat16>& a, const SharedMatrix<BFloat16>& b,
                                 int inner, float (&sums)[kTiles][4]) {
  const int group = simt::Lane() / 4, pair = simt::Lane() % 4 * 2;
  for (int k = 0; k < inner; k += kTileInner) {
    MmaOperands x;
#pragma unroll
    for (int i = 0; i < 4; ++i) x.a[i] = GetInnerPair(a, group + i % 2 * 8, k + pair + i / 2 * 8);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x.b[i] = GetInnerPair(b, n * kTileColumns + group, k + pair + i * 8);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) x.sums[i] = sums[n][i];
      MmaSync(x);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = x.sums[i];
    }
  }
}

template <int kTiles>
TESSERA_DEVICE void WarpMultiply(const SharedMatrix<float>& a, const SharedMatrix<float>& b,
                                 int inner, float (&sums)[kTiles][4]) {
#pragma unroll 1  // more would spill registers
  for (int k = 0; k < inner; ++k) {
    const float upper = a.Get(TileRow(0), k), lower = a.Get(TileRow(2), k);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float left = b.Get(n * kTileColumns + TileColumn(0), k);
      const float right = b.Get(n * kTileColumns + TileColumn(1), k);
      sums[n][0] = fmaf(upper, left, sums[n][0]);
      sums[n][1] = fmaf(upper, right, sums[n][1]);
      sums[n][2] = fmaf(lower, left, sums[n][2]);
      sums[n][3] = fmaf(lower, right, sums[n][3]);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_
