#ifndef TESSERA_COMPUTE_KERNELS_CUDA_EXACT_MATH_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_EXACT_MATH_H_

// The functions of processors' loops (cpu/functions-inl.h) on the numbers of a thread, and sums in
// the order of docs/exact.md: what kernels in EXACT numerics are made of.

#include <bit>
#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda::exact {

using Number = float;

// Each is rounded once.
TESSERA_DEVICE float MulAdd(float a, float b, float c) { return fmaf(a, b, c); }
TESSERA_DEVICE float MulSub(float a, float b, float c) { return fmaf(a, b, -c); }
TESSERA_DEVICE float NegMulAdd(float a, float b, float c) { return fmaf(-a, b, c); }

TESSERA_DEVICE float Select(bool mask, float yes, float no) { return mask ? yes : no; }
TESSERA_DEVICE float ZeroWhere(bool mask, float otherwise) { return mask ? 0.0f : otherwise; }

// Returns b if one of them is NaN, unlike fmaxf(); so does Min().
TESSERA_DEVICE float Max(float a, float b) { return a > b ? a : b; }
TESSERA_DEVICE float Min(float a, float b) { return a < b ? a : b; }
TESSERA_DEVICE float Clamp(float x, float least, float most) { return Min(most, Max(least, x)); }

TESSERA_DEVICE float ShiftIntoExponent(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) << 23);
}

TESSERA_DEVICE float SplitExponent(float x, float* exponent) {
  const uint32_t word = std::bit_cast<uint32_t>(x);
  const int32_t shifted = static_cast<int32_t>(word - 0x3f3504f3u) >> 23;
  *exponent = static_cast<float>(shifted);
  return std::bit_cast<float>(word - (static_cast<uint32_t>(shifted) << 23));
}

#ifndef TESSERA_INLINE
#define TESSERA_INLINE TESSERA_DEVICE
#endif
#include "compute/kernels/cpu/functions-inl.h"

// A row's sums and maximum are taken in sixteen lanes, lane i with elements i, i + 16, ..., and
// then in a tree over lanes. A row belongs to sixteen threads, half of a warp; whichever threads
// have rows call these functions, and each of a row's threads gets the result.

inline constexpr int kLanes = 16;

TESSERA_DEVICE int LaneOfRow() { return simt::ThreadIndex() % kLanes; }

// Reduces the lanes in pairs: i with i + 8, i + 4, i + 2, i + 1; the lower one is the first
// operand.
template <typename Operation>
TESSERA_DEVICE float ReduceLanes(float x, const Operation& operation) {
  const uint32_t lanes = 0xffffu << (simt::Lane() / kLanes * kLanes);
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const float other = simt::ShuffleXor(lanes, x, distance);
    const bool is_lower = (LaneOfRow() & distance) == 0;
    x = operation(is_lower ? x : other, is_lower ? other : x);
  }
  return x;
}

TESSERA_DEVICE float SumOfLanes(float x) {
  return ReduceLanes(x, [](float a, float b) { return a + b; });
}
TESSERA_DEVICE float MaxOfLanes(float x) { return ReduceLanes(x, Max); }

// Returns the sum over the elements [begin, end) of a row; add(i, sum) adds element i.
template <typename Add>
TESSERA_DEVICE float SumInLanes(int64_t begin, int64_t end, const Add& add) {
  float sum = 0;
  for (int64_t i = begin + LaneOfRow(); i < end; i += kLanes) sum = add(i, sum);
  return SumOfLanes(sum);
}

// Returns the maximum of x[0, count). NaN is ignored.
TESSERA_DEVICE float MaxInLanes(const float* x, int64_t count) {
  const int64_t whole = count / kLanes * kLanes;
  float max = -kInfinity;
  for (int64_t i = LaneOfRow(); i < whole; i += kLanes) max = Max(x[i], max);
  max = MaxOfLanes(max);
  for (int64_t i = whole; i < count; ++i) max = max < x[i] ? x[i] : max;
  return max;
}

inline constexpr int kRowThreads = 128;

inline simt::Grid RowGrid(int64_t rows) { return {simt::BlocksOf(rows, kRowThreads / kLanes)}; }

// Returns the row of the calling thread; the last block may have threads beyond the last row.
TESSERA_DEVICE int64_t OwnRow() {
  return simt::BlockX() * (kRowThreads / kLanes) + simt::ThreadIndex() / kLanes;
}

}  // namespace tessera::cuda::exact

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_EXACT_MATH_H_
