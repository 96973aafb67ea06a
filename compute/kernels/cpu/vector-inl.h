// Sixteen lanes of fp32 for the loops of this folder, on Google Highway: one register with AVX-512,
// two with AVX2, four with SSE. The end of an array uses the same vector code as its middle
// (LoadPart, StorePart), so that an element's result does not depend on its position in a buffer.
//
// Results have the same bits on every target: all have sixteen lanes, reductions have one tree,
// multiply-adds are written out and rounded once, and the compiler contracts none by itself
// (KERNEL_COPTS). This file must not use the processor's approximations (rcp14) or roundings with
// semantics of their own (cvtneps flushes subnormals). Targets without fused multiply-adds (SSE4)
// compose them of fp64 operations, which takes several times as long.
//
// This file is compiled once for each target, after hwy/foreach_target.h. Lambdas that use it need
// HWY_ATTR: the target's attribute applies to functions only.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_VECTOR_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_VECTOR_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <iterator>

#include "compute/kernels/cpu/gemm/registers-inl.h"
#include "tensor/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {

inline constexpr int kLanes = 16;

inline constexpr int kRegisters = kLanes / kRegisterLanes;

// Sixteen numbers. {} is zeros; a float converts to sixteen of itself.
struct F32x16 {
  F32x16() = default;
  TESSERA_INLINE F32x16(float value) {  // NOLINT: as with scalars, x * 2.0f
    for (FloatRegister& part : parts) part = hn::Set(FloatTag(), value);
  }
  FloatRegister parts[kRegisters];
};

// One truth value per lane.
struct Mask16 {
  hn::Mask<FloatTag> parts[kRegisters];
};

// Applies a lane-wise function of registers to all registers.
template <typename Function, typename... Operand>
TESSERA_INLINE F32x16 Map(Function function, const Operand&... operands) {
  F32x16 result;
  for (int i = 0; i < kRegisters; ++i) result.parts[i] = function(operands.parts[i]...);
  return result;
}

TESSERA_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return hn::Add(x, y); }, a, b);
}
TESSERA_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return hn::Sub(x, y); }, a, b);
}
TESSERA_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return hn::Mul(x, y); }, a, b);
}
TESSERA_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return hn::Div(x, y); }, a, b);
}
TESSERA_INLINE F32x16& operator+=(F32x16& a, F32x16 b) { return a = a + b; }

// Returns a * b + c, rounded once.
TESSERA_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return Map([](auto x, auto y, auto z) HWY_ATTR { return FusedMulAdd(x, y, z); }, a, b, c);
}
// Returns a * b - c, rounded once.
TESSERA_INLINE F32x16 MulSub(F32x16 a, F32x16 b, F32x16 c) {
  return Map([](auto x, auto y, auto z) HWY_ATTR { return FusedMulAdd(x, y, hn::Neg(z)); }, a, b,
             c);
}
// Returns c - a * b, rounded once.
TESSERA_INLINE F32x16 NegMulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return Map([](auto x, auto y, auto z) HWY_ATTR { return FusedMulAdd(hn::Neg(x), y, z); }, a, b,
             c);
}

// Returns the square root, correctly rounded.
TESSERA_INLINE F32x16 Sqrt(F32x16 a) {
  return Map([](auto x) HWY_ATTR { return hn::Sqrt(x); }, a);
}

TESSERA_INLINE Mask16 operator<(F32x16 a, F32x16 b) {
  Mask16 result;
  for (int i = 0; i < kRegisters; ++i) result.parts[i] = hn::Lt(a.parts[i], b.parts[i]);
  return result;
}
TESSERA_INLINE Mask16 operator==(F32x16 a, F32x16 b) {
  Mask16 result;
  for (int i = 0; i < kRegisters; ++i) result.parts[i] = hn::Eq(a.parts[i], b.parts[i]);
  return result;
}

TESSERA_INLINE F32x16 Select(const Mask16& mask, F32x16 yes, F32x16 no) {
  return Map([](auto m, auto x, auto y) HWY_ATTR { return hn::IfThenElse(m, x, y); }, mask, yes,
             no);
}
// Returns zero in lanes whose mask is set, `otherwise` in the others.
TESSERA_INLINE F32x16 ZeroWhere(const Mask16& mask, F32x16 otherwise) {
  return Map([](auto m, auto x) HWY_ATTR { return hn::IfThenZeroElse(m, x); }, mask, otherwise);
}

// Returns a > b ? a : b, so b if one of them is NaN or both are zeros; Min() likewise. So do the
// instructions of x86-64, but not those of other processors.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
template <typename Register>
TESSERA_INLINE Register MaxRegister(Register a, Register b) {
  return hn::Max(a, b);
}
template <typename Register>
TESSERA_INLINE Register MinRegister(Register a, Register b) {
  return hn::Min(a, b);
}
#else
template <typename Register>
TESSERA_INLINE Register MaxRegister(Register a, Register b) {
  return hn::IfThenElse(hn::Gt(a, b), a, b);
}
template <typename Register>
TESSERA_INLINE Register MinRegister(Register a, Register b) {
  return hn::IfThenElse(hn::Lt(a, b), a, b);
}
#endif
TESSERA_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return MaxRegister(x, y); }, a, b);
}
TESSERA_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return Map([](auto x, auto y) HWY_ATTR { return MinRegister(x, y); }, a, b);
}
// Limits x to [least, most]. NaN is preserved.
TESSERA_INLINE F32x16 Clamp(F32x16 x, float least, float most) { return Min(most, Max(least, x)); }

TESSERA_INLINE F32x16 Load(const float* from) {
  F32x16 x;
  for (int i = 0; i < kRegisters; ++i) {
    x.parts[i] = hn::LoadU(FloatTag(), from + i * kRegisterLanes);
  }
  return x;
}

TESSERA_INLINE F32x16 Load(const BFloat16* from) {
  F32x16 x;
  for (int i = 0; i < kRegisters; ++i) {
    const auto bits = hn::LoadU(HalfTag(), &from[i * kRegisterLanes].bits);
    x.parts[i] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
  }
  return x;
}

TESSERA_INLINE void Store(F32x16 x, float* to) {
  for (int i = 0; i < kRegisters; ++i) hn::StoreU(x.parts[i], FloatTag(), to + i * kRegisterLanes);
}

// Returns the bits of the nearest bf16, in the upper halves. As BFloat16(float): nearest even, NaN
// preserved. The lower halves are unspecified.
TESSERA_INLINE WordRegister RoundedWords(FloatRegister x) {
  const WordTag words;
  const WordRegister word = hn::BitCast(words, x);
#if HWY_TARGET <= HWY_AVX3
  const __mmask16 odd = _mm512_test_epi32_mask(word.raw, _mm512_set1_epi32(0x10000));
  const __m512i down = _mm512_add_epi32(word.raw, _mm512_set1_epi32(0x7fff));
  const WordRegister rounded{_mm512_mask_add_epi32(down, odd, word.raw, _mm512_set1_epi32(0x8000))};
#else
  const WordRegister odd = hn::And(hn::ShiftRight<16>(word), hn::Set(words, 1));
  const WordRegister rounded = hn::Add(hn::Add(word, hn::Set(words, 0x7fff)), odd);
#endif
  const WordRegister quiet = hn::Or(word, hn::Set(words, 0x400000));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(x)), quiet, rounded);
}

TESSERA_INLINE void Store(F32x16 x, BFloat16* to) {
  uint16_t* const bits = &to->bits;
#if HWY_TARGET <= HWY_AVX3
  alignas(64) static constexpr uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15,
                                                            17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i words = RoundedWords(x.parts[0]).raw;
  const __m512i halves = _mm512_permutexvar_epi16(_mm512_load_si512(kUpperHalves), words);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), _mm512_castsi512_si256(halves));
#elif HWY_TARGET == HWY_AVX2
  const __m256i low = hn::ShiftRight<16>(RoundedWords(x.parts[0])).raw;
  const __m256i high = hn::ShiftRight<16>(RoundedWords(x.parts[1])).raw;
  // Packs the 128-bit blocks 0 and 2, then 1 and 3.
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), halves);
#else
  for (int i = 0; i < kRegisters; ++i) {
    const WordRegister word = hn::ShiftRight<16>(RoundedWords(x.parts[i]));
    const auto halves = hn::DemoteTo(HalfTag(), hn::BitCast(hn::RebindToSigned<WordTag>(), word));
    hn::StoreU(halves, HalfTag(), bits + i * kRegisterLanes);
  }
#endif
}

// Loads the first `count` lanes, 0 < count < kLanes; the others are zero.
template <typename T>
TESSERA_INLINE F32x16 LoadPart(const T* from, int64_t count) {
  T lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), from, count * sizeof(T));
  return Load(lanes);
}

template <typename T>
TESSERA_INLINE void StorePart(F32x16 x, T* to, int64_t count) {
  T lanes[kLanes];
  Store(x, lanes);
  std::memcpy(static_cast<void*>(to), lanes, count * sizeof(T));
}

// Calls body(i, load, store) for i = begin, begin + 16, begin + 32, ... < end, where load(p) and
// store(x, p) touch only elements before `end`.
template <typename Body>
TESSERA_INLINE void ForLanes(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body(
        i, [](const auto* from) HWY_ATTR { return Load(from); },
        [](F32x16 x, auto* to) HWY_ATTR { Store(x, to); });
  }
  if (i < end) {
    const int64_t rest = end - i;
    body(
        i, [rest](const auto* from) HWY_ATTR { return LoadPart(from, rest); },
        [rest](F32x16 x, auto* to) HWY_ATTR { StorePart(x, to, rest); });
  }
}

template <typename Body>
TESSERA_INLINE void ForLanes(int64_t count, Body body) {
  ForLanes(0, count, body);
}

// Reduces the lanes in a fixed tree: i with i + 8, i + 4, i + 2, i + 1. `operation` is a function
// of two registers.
template <typename Operation, typename Register>
TESSERA_INLINE auto ReduceRegister(Register x, Operation operation) {
  using Tag = hn::DFromV<Register>;
  if constexpr (hn::MaxLanes(Tag()) == 1) {
    return hn::GetLane(x);
  } else {
    const hn::Half<Tag> half;
    return ReduceRegister(operation(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), operation);
  }
}

template <typename Lanes, typename Operation>
TESSERA_INLINE auto Reduce(Lanes x, Operation operation) {
  for (int distance = std::size(x.parts) / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) x.parts[i] = operation(x.parts[i], x.parts[i + distance]);
  }
  return ReduceRegister(x.parts[0], operation);
}

TESSERA_INLINE float ReduceSum(F32x16 x) {
  return Reduce(x, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}
TESSERA_INLINE float ReduceMax(F32x16 x) {
  return Reduce(x, [](auto a, auto b) HWY_ATTR { return MaxRegister(a, b); });
}
// Returns lane 0.
TESSERA_INLINE float First(F32x16 x) { return hn::GetLane(x.parts[0]); }

using Number = F32x16;

TESSERA_INLINE F32x16 ShiftIntoExponent(F32x16 x) {
  return Map(
      [](auto part) HWY_ATTR {
        return hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::BitCast(WordTag(), part)));
      },
      x);
}

TESSERA_INLINE F32x16 SplitExponent(F32x16 x, F32x16* exponent) {
  F32x16 m;
  for (int i = 0; i < kRegisters; ++i) {
    const hn::RebindToSigned<WordTag> integers;
    const auto word = hn::BitCast(integers, x.parts[i]);
    const auto shifted = hn::ShiftRight<23>(hn::Sub(word, hn::Set(integers, 0x3f3504f3)));
    m.parts[i] = hn::BitCast(FloatTag(), hn::Sub(word, hn::ShiftLeft<23>(shifted)));
    exponent->parts[i] = hn::ConvertTo(FloatTag(), shifted);
  }
  return m;
}

#include "compute/kernels/cpu/functions-inl.h"

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_VECTOR_INL_H_
