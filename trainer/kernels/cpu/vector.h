#ifndef TESSERA_TRAINER_KERNELS_CPU_VECTOR_H_
#define TESSERA_TRAINER_KERNELS_CPU_VECTOR_H_

// Sixteen lanes of fp32 for the loops of this folder, in the compiler's portable vector types: one
// register with AVX-512, two with AVX2. The end of an array goes through the same vector code as
// its middle (LoadPart, StorePart), so that an element's result does not depend on where in a
// buffer it lies.
//
// Targets that include this compile with KERNEL_COPTS; nothing outside this folder may include it.

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "trainer/tensor/dtype.h"

namespace tessera {

inline constexpr int kLanes = 16;
inline constexpr float kLog2E = 1.44269504088896341f;

using F32x16 = float __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using U16x16 = uint16_t __attribute__((vector_size(32)));
using F64x8 = double __attribute__((vector_size(64)));

#define TESSERA_INLINE inline __attribute__((always_inline))

TESSERA_INLINE F32x16 Splat(float value) { return F32x16{} + value; }

template <typename To, typename From>
TESSERA_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

TESSERA_INLINE F32x16 Load(const float* from) {
  F32x16 x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

TESSERA_INLINE F32x16 Widen(U16x16 bits) {
  return BitCast<F32x16>(__builtin_convertvector(bits, U32x16) << 16);
}

TESSERA_INLINE F32x16 Load(const BFloat16* from) {
  U16x16 bits;
  std::memcpy(&bits, from, sizeof(bits));
  return Widen(bits);
}

TESSERA_INLINE void Store(F32x16 x, float* to) { std::memcpy(to, &x, sizeof(x)); }

TESSERA_INLINE F32x16 Select(I32x16 mask, F32x16 yes, F32x16 no) { return mask ? yes : no; }

// As BFloat16(float): nearest even, NaN stays NaN.
TESSERA_INLINE U16x16 Narrow(F32x16 x) {
  const U32x16 word = BitCast<U32x16>(x);
  const U32x16 rounded = word + 0x7fff + ((word >> 16) & 1);
  const U32x16 quiet = word | 0x400000;
  const U32x16 chosen =
      BitCast<U32x16>(Select(x != x, BitCast<F32x16>(quiet), BitCast<F32x16>(rounded)));
  return __builtin_convertvector(chosen >> 16, U16x16);
}

TESSERA_INLINE void Store(F32x16 x, BFloat16* to) {
  const U16x16 bits = Narrow(x);
  std::memcpy(to, &bits, sizeof(bits));
}

// As Store, but what is subnormal in T may become 0: one instruction where the processor has it.
TESSERA_INLINE void StoreFlushed(F32x16 x, float* to) { Store(x, to); }

TESSERA_INLINE void StoreFlushed(F32x16 x, BFloat16* to) {
#if defined(__AVX512BF16__)
  const __m256bh bits = _mm512_cvtneps_pbh(x);
  std::memcpy(to, &bits, sizeof(bits));
#else
  Store(x, to);
#endif
}

// The first `count` lanes, 0 < count < kLanes; the others are zero.
template <typename T>
TESSERA_INLINE F32x16 LoadPart(const T* from, int64_t count) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return Load(lanes);
}

template <typename T>
TESSERA_INLINE void StorePart(F32x16 x, T* to, int64_t count) {
  T lanes[kLanes];
  Store(x, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

// How a value looks after a trip through memory of type T.
template <typename T>
TESSERA_INLINE F32x16 RoundTo(F32x16 x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else {
    return Widen(Narrow(x));
  }
}

// Calls body(i, load, store) for i = 0, 16, 32, ... < count, where load(p) and store(x, p) touch
// only the lanes that exist.
template <typename Body>
TESSERA_INLINE void ForLanes(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    body(
        i, [](const auto* from) __attribute__((always_inline)) { return Load(from); },
        [](F32x16 x, auto* to) __attribute__((always_inline)) { Store(x, to); });
  }
  if (i < count) {
    const int64_t rest = count - i;
    body(
        i, [rest](const auto* from) __attribute__((always_inline)) { return LoadPart(from, rest); },
        [rest](F32x16 x, auto* to) __attribute__((always_inline)) { StorePart(x, to, rest); });
  }
}

// As ForLanes over [begin, end), but what is stored as subnormal may become 0.
template <typename Body>
TESSERA_INLINE void ForLanesFlushed(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(
        i, [](const auto* from) __attribute__((always_inline)) { return Load(from); },
        [](F32x16 x, auto* to) __attribute__((always_inline)) { StoreFlushed(x, to); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    body(
        i, [rest](const auto* from) __attribute__((always_inline)) { return LoadPart(from, rest); },
        [rest](F32x16 x, auto* to) __attribute__((always_inline)) { StorePart(x, to, rest); });
  }
}

TESSERA_INLINE F32x16 Max(F32x16 a, F32x16 b) { return Select(a > b, a, b); }

// NaN stays.
TESSERA_INLINE F32x16 Clamp(F32x16 x, float least, float most) {
#if defined(__AVX512F__)
  // Of a NaN and a number these take the second operand.
  return _mm512_min_ps(Splat(most), _mm512_max_ps(Splat(least), x));
#else
  return Select(x > most, Splat(most), Select(x < least, Splat(least), x));
#endif
}

// Correctly rounded.
TESSERA_INLINE F32x16 Sqrt(F32x16 x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#else
  float lanes[kLanes];
  Store(x, lanes);
  for (float& lane : lanes) lane = std::sqrt(lane);
  return Load(lanes);
#endif
}

// Lanes in a fixed tree: i with i + 8, i + 4, i + 2, i + 1.
template <typename Operation>
TESSERA_INLINE float Reduce(F32x16 x, Operation operation) {
  const auto lower8 = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto upper8 = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto eight = operation(lower8, upper8);
  const auto four = operation(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                              __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const auto two = operation(__builtin_shufflevector(four, four, 0, 1),
                             __builtin_shufflevector(four, four, 2, 3));
  return operation(__builtin_shufflevector(two, two, 0, -1),
                   __builtin_shufflevector(two, two, 1, -1))[0];
}

TESSERA_INLINE float ReduceSum(F32x16 x) {
  return Reduce(x, [](auto a, auto b) { return a + b; });
}

TESSERA_INLINE float ReduceMax(F32x16 x) {
  return Reduce(x, [](auto a, auto b) { return a > b ? a : b; });
}

// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
inline constexpr float kRoundingShift = 12582912.0f;

// 2^(n + r) for |r| <= 1/2; n = shifted - kRoundingShift, from -127 to 129.
TESSERA_INLINE F32x16 PowerOf2(F32x16 shifted, F32x16 r) {
  // Minimax, relative error 3e-9.
  F32x16 p = Splat(1.55946775e-4f);
  p = p * r + 1.34066439e-3f;
  p = p * r + 9.61769297e-3f;
  p = p * r + 5.55031055e-2f;
  p = p * r + 2.40226528e-1f;
  p = p * r + 6.93147215e-1f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, shifted - kRoundingShift);
#else
  // In two factors: n is at times one more than an exponent can say.
  const I32x16 exponent = BitCast<I32x16>(shifted) - std::bit_cast<int32_t>(kRoundingShift);
  const I32x16 half = exponent >> 1;
  const F32x16 scale0 = BitCast<F32x16>((half + 127) << 23);
  const F32x16 scale1 = BitCast<F32x16>((exponent - half + 127) << 23);
  return (p * scale0) * scale1;
#endif
}

// e^x. Largest error 1.5 ulp over the normal range; below -87.3 the result is 0, above 88.73
// infinity; NaN stays.
TESSERA_INLINE F32x16 Exp(F32x16 x) {
  constexpr float kLog2ELow = 1.92596303e-8f;  // log2(e) - kLog2E
  const F32x16 clamped = Clamp(x, -88.0f, 89.0f);
  const F32x16 shifted = clamped * kLog2E + kRoundingShift;
  // Both products are fused with their sums: x * kLog2E - n is exact.
  const F32x16 r = clamped * kLog2E - (shifted - kRoundingShift);
  return Select(x < -87.33654f, F32x16{}, PowerOf2(shifted, clamped * kLog2ELow + r));
}

// 2^x, within 1.5 ulp; below -126 the result is 0, from 128 on infinity; NaN stays.
TESSERA_INLINE F32x16 Exp2(F32x16 x) {
  const F32x16 clamped = Clamp(x, -127.0f, 129.0f);
  const F32x16 shifted = clamped + kRoundingShift;
  return Select(x < -126.0f, F32x16{}, PowerOf2(shifted, clamped - (shifted - kRoundingShift)));
}

// 1 / x for normal x > 0 below 2^126, within 1 ulp.
TESSERA_INLINE F32x16 Reciprocal(F32x16 x) {
#if defined(__AVX512F__)
  // A division holds the divider for 16 cycles; an estimate of 14 bits and one step of Newton's method do not.
  const F32x16 estimate = _mm512_rcp14_ps(x);
  return estimate + estimate * (1.0f - x * estimate);
#else
  return 1.0f / x;
#endif
}

// 1 / (1 + e^-x), within 3 ulp; 0 below -87. A NaN is lost: callers multiply by x.
TESSERA_INLINE F32x16 Sigmoid(F32x16 x) {
  const F32x16 result = Reciprocal(1.0f + Exp(-Max(x, Splat(-87.0f))));
  return Select(x < -87.0f, F32x16{}, result);
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_VECTOR_H_
