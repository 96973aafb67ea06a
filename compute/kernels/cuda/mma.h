#ifndef TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_

// Products of small matrices by one warp: bf16 on tensor cores, fp32 by multiply-adds.
//
// An accumulator tile is 16 rows by 8 columns, four elements a lane: element i is in row
// TileRow(i), column TileColumn(i), as PTX defines it for mma.m16n8k16.

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/simt.h"
#include "tensor/bfloat16.h"

#ifndef __CUDACC__
#include "compute/kernels/cuda/testing/simulated_mma.h"
#endif

namespace tessera::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 8;
inline constexpr int kTileInner = 16;

TESSERA_DEVICE int TileRow(int i) { return simt::Lane() / 4 + i / 2 * 8; }
TESSERA_DEVICE int TileColumn(int i) { return simt::Lane() % 4 * 2 + i % 2; }

#ifdef __CUDACC__

// Adds a b to `sums`, where a is 16 x 16 and b 16 x 8. A lane holds, in pairs of adjacent inner
// indices, of `a` rows L/4 and L/4 + 8 at inner 2(L%4), then both at inner 2(L%4) + 8; of `b`
// column L/4 at the same.
TESSERA_DEVICE void Mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four matrices of 8 x 8. Lane L names row L%8 of matrix L/8 by its first element, and gets
// in to[j] the elements 2(L%4) and the next of row L/4 of matrix j, or of its transpose if
// kTransposed.
template <bool kTransposed>
TESSERA_DEVICE void LoadMatrices(const simt::SharedArray<BFloat16>& from, int at,
                                 uint32_t (&to)[4]) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from.Address(at)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from.Address(at)));
  }
}

#endif

// A tile of kRows rows of kColumns elements in shared memory. Rows are 16 bytes longer, so that
// eight of them lie in different banks.
template <int kRows, int kColumns, typename T>
struct SharedTile {
  static constexpr int kStride = kColumns + simt::SharedArray<T>::kPack;
  static constexpr int kElements = kRows * kStride;

  simt::SharedArray<T> elements;
};

// The left operand of products: kTiles times 16 rows of a tile, from row `first` on. With
// kResident, bf16 stays in registers.
template <int kColumns, typename T, bool kResident, int kTiles = 1>
class LeftRows {  // fp32
 public:
  template <int kRows>
  TESSERA_DEVICE LeftRows(const SharedTile<kRows, kColumns, T>& tile, int first)
      : elements_(tile.elements), at_((first + TileRow(0)) * tile.kStride), stride_(tile.kStride) {}
  // Returns element k of row TileRow(2 * half).
  TESSERA_DEVICE float Get(int half, int k) const {
    return elements_.Get(at_ + half * 8 * stride_ + k);
  }

 private:
  simt::SharedArray<T> elements_;
  int at_, stride_;
};

template <int kColumns, bool kResident, int kTiles>
class LeftRows<kColumns, BFloat16, kResident, kTiles> {
 public:
  template <int kRows>
  TESSERA_DEVICE LeftRows(const SharedTile<kRows, kColumns, BFloat16>& tile, int first)
      : elements_(tile.elements),
        at_((first + simt::Lane() % 16) * kStride + simt::Lane() / 16 * 8) {
    if constexpr (kResident) {
      static_assert(kTiles == 1);
#pragma unroll
      for (int k = 0; k < kColumns / kTileInner; ++k) Load(0, k, fragments_[k]);
    }
  }
  // Gets the operand of inner indices [16k, 16k + 16).
  TESSERA_DEVICE void Get(int tile, int k, uint32_t (&a)[4]) const {
    if constexpr (kResident) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = fragments_[k][i];
    } else {
      Load(tile, k, a);
    }
  }

 private:
  TESSERA_DEVICE void Load(int tile, int k, uint32_t (&a)[4]) const {
    LoadMatrices<false>(elements_, at_ + tile * kTileRows * kStride + k * kTileInner, a);
  }

  static constexpr int kStride = SharedTile<kTileRows, kColumns, BFloat16>::kStride;

  simt::SharedArray<BFloat16> elements_;
  int at_;
  uint32_t fragments_[kResident ? kColumns / kTileInner : 1][4];
};

// Adds left[16 kTiles, kColumns] right[kRows, kColumns]^T to sums[16 kTiles, kRows], which has the
// accumulators of the first 16 rows first. All lanes take part.
template <int kRows, int kColumns, bool kResident, int kTiles>
TESSERA_DEVICE void MultiplyByRows(const LeftRows<kColumns, BFloat16, kResident, kTiles>& left,
                                   const SharedTile<kRows, kColumns, BFloat16>& right,
                                   float (&sums)[kTiles * (kRows / kTileColumns)][4]) {
  const int lane = simt::Lane();
  const int at = (lane % 8 + lane / 16 * 8) * right.kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kColumns / kTileInner; ++k) {
    uint32_t a[kTiles][4], b[4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) left.Get(tile, k, a[tile]);
#pragma unroll
    for (int n = 0; n < kRows / kTileColumns; n += 2) {
      LoadMatrices<false>(right.elements, at + n * kTileColumns * right.kStride + k * kTileInner,
                          b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Mma(a[tile], b[0], b[1], sums[tile * (kRows / kTileColumns) + n]);
        Mma(a[tile], b[2], b[3], sums[tile * (kRows / kTileColumns) + n + 1]);
      }
    }
  }
}

// Returns the elements of a tile, of accumulators or of pairs of bf16, in row TileRow(2 * half).
TESSERA_DEVICE uint32_t PairOf(const float (&tile)[4], int half) {
  return simt::BFloat16Pair(tile[2 * half], tile[2 * half + 1]);
}
TESSERA_DEVICE uint32_t PairOf(const uint32_t (&tile)[2], int half) { return tile[half]; }

// Adds left[16 kTiles, kRows] right[kRows, kColumns] to sums[16 kTiles, kColumns]. `left` is in
// tiles of accumulators, which are operands of the next product as they are, or of pairs; those of
// the first 16 rows come first.
template <int kRows, int kColumns, int kLeft, int kSums, typename Tile>
TESSERA_DEVICE void MultiplyByColumns(const Tile (&left)[kLeft],
                                      const SharedTile<kRows, kColumns, BFloat16>& right,
                                      float (&sums)[kSums][4]) {
  constexpr int kLeftTiles = kRows / kTileColumns, kSumTiles = kColumns / kTileColumns;
  constexpr int kTiles = kLeft / kLeftTiles;
  static_assert(kLeft == kTiles * kLeftTiles && kSums == kTiles * kSumTiles);
  const int at = simt::Lane() % 16 * right.kStride + simt::Lane() / 16 * 8;
#pragma unroll
  for (int k = 0; k < kRows / kTileInner; ++k) {
    uint32_t a[kTiles][4], b[4];
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      a[i / 4][i % 4] = PairOf(left[i / 4 * kLeftTiles + 2 * k + i % 4 / 2], i % 2);
    }
#pragma unroll
    for (int n = 0; n < kSumTiles; n += 2) {
      LoadMatrices<true>(right.elements, at + k * kTileInner * right.kStride + n * kTileColumns, b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Mma(a[tile], b[0], b[1], sums[tile * kSumTiles + n]);
        Mma(a[tile], b[2], b[3], sums[tile * kSumTiles + n + 1]);
      }
    }
  }
}

// Adds left[kRows, 16]^T right[kRows, 8 kTiles] to sums[16, 8 kTiles], where both are columns of
// tiles from those named on.
template <int kRows, int kLeft, int kRight, int kTiles>
TESSERA_DEVICE void MultiplyColumnsByColumns(const SharedTile<kRows, kLeft, BFloat16>& left,
                                             int left_column,
                                             const SharedTile<kRows, kRight, BFloat16>& right,
                                             int right_column, float (&sums)[kTiles][4]) {
  const int lane = simt::Lane();
  const int left_at = (lane % 8 + lane / 16 * 8) * left.kStride + left_column + lane / 8 % 2 * 8;
  const int right_at = lane % 16 * right.kStride + right_column + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kRows; k += kTileInner) {
    uint32_t a[4], b[4];
    LoadMatrices<true>(left.elements, left_at + k * left.kStride, a);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      LoadMatrices<true>(right.elements, right_at + k * right.kStride + n * kTileColumns, b);
      Mma(a, b[0], b[1], sums[n]);
      Mma(a, b[2], b[3], sums[n + 1]);
    }
  }
}

// Writes tiles of pairs to `to`, from row `first` on; those of its first 16 rows come first.
template <int kRows, int kColumns, int kTiles>
TESSERA_DEVICE void StoreTiles(const uint32_t (&from)[kTiles][2], int first,
                               const SharedTile<kRows, kColumns, BFloat16>& to) {
  constexpr int kAcross = kColumns / kTileColumns;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + n / kAcross * kTileRows + TileRow(2 * half);
      to.elements.SetPair(row * to.kStride + n % kAcross * kTileColumns + TileColumn(0),
                          from[n][half]);
    }
  }
}

template <int kRows, int kColumns, bool kResident>
TESSERA_DEVICE void MultiplyByRows(const LeftRows<kColumns, float, kResident>& left,
                                   const SharedTile<kRows, kColumns, float>& right,
                                   float (&sums)[kRows / kTileColumns][4]) {
#pragma unroll 1  // more would spill registers
  for (int k = 0; k < kColumns; ++k) {
    const float rows[2] = {left.Get(0, k), left.Get(1, k)};
#pragma unroll
    for (int n = 0; n < kRows / kTileColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * kTileColumns + TileColumn(i);
        sums[n][i] = fmaf(rows[i / 2], right.elements.Get(column * right.kStride + k), sums[n][i]);
      }
    }
  }
}

// Multiplies fp32: the lanes of a row pass its elements to each other.
template <int kRows, int kColumns>
TESSERA_DEVICE void MultiplyByColumns(const float (&left)[kRows / kTileColumns][4],
                                      const SharedTile<kRows, kColumns, float>& right,
                                      float (&sums)[kColumns / kTileColumns][4]) {
#pragma unroll
  for (int k = 0; k < kRows; k += 2) {
    const float(&own)[4] = left[k / kTileColumns];
    const simt::Pack<float, 4> theirs =
        simt::ShuffleFrom(simt::kAllLanes, simt::Pack<float, 4>{own[0], own[1], own[2], own[3]},
                          simt::Lane() / 4 * 4 + k % kTileColumns / 2);
#pragma unroll
    for (int n = 0; n < kColumns / kTileColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = n * kTileColumns + TileColumn(i % 4);
        const float weight = theirs.elements[i % 4 / 2 * 2 + i / 4];
        const float value = right.elements.Get((k + i / 4) * right.kStride + column);
        sums[n][i % 4] = fmaf(weight, value, sums[n][i % 4]);
      }
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_MMA_H_
