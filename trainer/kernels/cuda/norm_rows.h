#ifndef TESSERA_TRAINER_KERNELS_CUDA_NORM_ROWS_H_
#define TESSERA_TRAINER_KERNELS_CUDA_NORM_ROWS_H_

// One warp a row, as in the norms.

#include <cstdint>
#include <type_traits>

#include "trainer/kernels/cuda/operands.h"
#include "trainer/kernels/cuda/simt.h"

namespace tessera::cuda {

inline constexpr int kWarpRowThreads = 128;
inline constexpr int kWarpRowsPerBlock = kWarpRowThreads / simt::kWarpSize;

inline simt::Grid WarpRowGrid(int64_t rows) { return {simt::BlocksOf(rows, kWarpRowsPerBlock)}; }

// The row of the calling thread's warp; the last block may have warps beyond the last row.
TESSERA_DEVICE int64_t WarpRow() { return simt::BlockX() * kWarpRowsPerBlock + simt::WarpIndex(); }

// Calls body(column, left) for the runs of kPackElements columns that belong to this lane, where
// `left` columns, perhaps fewer than a run has, are left of the row.
template <typename Body>
TESSERA_DEVICE void ForLaneRuns(int64_t columns, Body body) {
  constexpr int64_t kStep = simt::kWarpSize * kPackElements;
  for (int64_t column = simt::Lane() * kPackElements; column < columns; column += kStep) {
    body(column, columns - column);
  }
}

// Loads a run, with zeros for columns beyond the row. Whether it is loaded as a pack changes no
// result: lanes have the same columns.
template <bool kPacks, typename T>
TESSERA_DEVICE void LoadRun(const T* from, int64_t left, float (&to)[kPackElements]) {
  if constexpr (kPacks) {
    simt::LoadPack(from, to);
  } else {
    for (int i = 0; i < kPackElements; ++i) to[i] = i < left ? simt::ToFloat(from[i]) : 0.0f;
  }
}

template <bool kPacks, typename T>
TESSERA_DEVICE void StoreRun(const float (&from)[kPackElements], int64_t left, T* to) {
  if constexpr (kPacks) {
    simt::StorePack(from, to);
  } else {
    for (int i = 0; i < kPackElements; ++i) {
      if (i < left) to[i] = simt::FromFloat<T>(from[i]);
    }
  }
}

// Calls body(std::true_type()) or body(std::false_type()).
template <typename Body>
void WithPacks(bool packs, Body body) {
  if (packs) return body(std::true_type());
  body(std::false_type());
}

}  // namespace tessera::cuda

#endif  // TESSERA_TRAINER_KERNELS_CUDA_NORM_ROWS_H_
