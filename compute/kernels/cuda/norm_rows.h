#ifndef TESSERA_COMPUTE_KERNELS_CUDA_NORM_ROWS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_NORM_ROWS_H_

// One warp a row, as in the norms.

#include <glog/logging.h>

#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

inline constexpr int kWarpRowThreads = 128;
inline constexpr int kWarpRowsPerBlock = kWarpRowThreads / simt::kWarpSize;

inline simt::Grid WarpRowGrid(int64_t rows) { return {simt::BlocksOf(rows, kWarpRowsPerBlock)}; }

// The row of the calling thread's warp; the last block may have warps beyond the last row.
TESSERA_DEVICE int64_t WarpRow() { return simt::BlockX() * kWarpRowsPerBlock + simt::WarpIndex(); }

// Loads a run, with zeros for columns beyond the row. Whether it is loaded as a pack changes no
// result: lanes have the same columns.
template <bool kPacks, int kCount, typename T>
TESSERA_DEVICE void LoadRun(const T* from, int64_t left, float (&to)[kCount]) {
  if constexpr (kPacks) {
    simt::LoadPack(from, to);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = i < left ? simt::ToFloat(from[i]) : 0.0f;
  }
}

template <bool kPacks, int kCount, typename T>
TESSERA_DEVICE void StoreRun(const float (&from)[kCount], int64_t left, T* to) {
  if constexpr (kPacks) {
    simt::StorePack(from, to);
  } else {
    for (int i = 0; i < kCount; ++i) {
      if (i < left) to[i] = simt::FromFloat<T>(from[i]);
    }
  }
}

// The rows that a norm reads: those of x, or, with kAdds, those of x = a + b, which the first pass
// over a row writes.
template <bool kAdds, typename T>
struct NormInput {
  Rows<T> x, a, b;

  // The run that starts at `column`, in the first pass. Later passes load what the same lane has
  // stored.
  template <bool kPacks>
  TESSERA_DEVICE void First(int64_t row, int64_t column, int64_t left,
                            float (&to)[kPackOf<T>]) const {
    T* const at = x.data + row * x.stride + column;
    if constexpr (kAdds) {
      float addends[kPackOf<T>];
      LoadRun<kPacks>(a.data + row * a.stride + column, left, to);
      LoadRun<kPacks>(b.data + row * b.stride + column, left, addends);
      for (int i = 0; i < kPackOf<T>; ++i) {
        to[i] = simt::ToFloat(simt::FromFloat<T>(to[i] + addends[i]));
      }
      StoreRun<kPacks>(to, left, at);
    } else {
      LoadRun<kPacks>(at, left, to);
    }
  }
};

template <typename T>
NormInput<false, T> NormInputOf(const TensorView& x) {
  return {AsRows<T>(x), {}, {}};
}

template <typename T>
NormInput<true, T> NormInputOf(const TensorView& a, const TensorView& b, const TensorView& sum) {
  return {AsRows<T>(sum), AsRows<T>(a), AsRows<T>(b)};
}

template <bool kAdds, typename T>
bool AllowsPacks(const NormInput<kAdds, T>& input) {
  constexpr int kPack = kPackOf<T>;
  return AllowsPacks<kPack>(input.x) &&
         (!kAdds || (AllowsPacks<kPack>(input.a) && AllowsPacks<kPack>(input.b)));
}

// Calls body(std::true_type()) or body(std::false_type()).
template <typename Body>
void WithPacks(bool packs, Body body) {
  if (packs) return body(std::true_type());
  body(std::false_type());
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_NORM_ROWS_H_
