// Registers of at most sixteen numbers, for each instruction set: multiply-adds that are rounded
// once on all of them, and squares of words that are transposed.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_GEMM_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_GEMM_REGISTERS_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_GEMM_REGISTERS_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_REGISTERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#ifndef TESSERA_INLINE
#define TESSERA_INLINE inline __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;  // as many lanes as a register of FloatTag
using FloatRegister = hn::Vec<FloatTag>;
using WordRegister = hn::Vec<WordTag>;
inline constexpr int kRegisterLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

// Returns a * b + c, rounded once.
#if HWY_NATIVE_FMA
TESSERA_INLINE FloatRegister FusedMulAdd(FloatRegister a, FloatRegister b, FloatRegister c) {
  return hn::MulAdd(a, b, c);
}
#else
using HalfFloatTag = hn::Half<FloatTag>;
using HalfFloats = hn::Vec<HalfFloatTag>;

// Returns a * b + c, rounded once, by fp64. A product of fp32 numbers is exact in fp64, and the sum
// is rounded there. Rounding the sum again to fp32 makes a difference only if it lies halfway
// between two numbers or is less than a normal one. Such a sum is first rounded to odd, so that the
// second rounding is as if the sum had been exact (Boldo and Melquiond, 2008).
TESSERA_INLINE HalfFloats FusedMulAddHalf(HalfFloats a, HalfFloats b, HalfFloats c) {
  const hn::Rebind<double, HalfFloatTag> wide;
  const hn::RebindToUnsigned<decltype(wide)> words;
  const auto product = hn::Mul(hn::PromoteTo(wide, a), hn::PromoteTo(wide, b));
  const auto addend = hn::PromoteTo(wide, c);
  const auto sum = hn::Add(product, addend);
  const auto bits = hn::BitCast(words, sum), one = hn::Set(words, 1);
  const auto is_half =
      hn::Eq(hn::And(bits, hn::Set(words, 0x1fffffff)), hn::Set(words, 0x10000000));
  const auto is_small = hn::Lt(hn::Abs(sum), hn::Set(wide, 0x1p-126));
  if (hn::AllFalse(wide, hn::Or(hn::RebindMask(wide, is_half), is_small))) {
    return hn::DemoteTo(HalfFloatTag(), sum);
  }
  const auto from_addend = hn::Sub(sum, product);
  const auto lost =
      hn::Add(hn::Sub(product, hn::Sub(sum, from_addend)), hn::Sub(addend, from_addend));
  const auto opposite = hn::ShiftRight<63>(hn::Xor(bits, hn::BitCast(words, lost)));
  const auto is_even = hn::Sub(hn::And(bits, one), one);  // all bits, or none
  const auto is_inexact = hn::BitCast(
      words,
      hn::VecFromMask(wide, hn::Or(hn::Gt(lost, hn::Zero(wide)), hn::Lt(lost, hn::Zero(wide)))));
  const auto step =
      hn::And(hn::Sub(one, hn::Add(opposite, opposite)), hn::And(is_even, is_inexact));
  return hn::DemoteTo(HalfFloatTag(), hn::BitCast(wide, hn::Add(bits, step)));
}

TESSERA_INLINE FloatRegister FusedMulAdd(FloatRegister a, FloatRegister b, FloatRegister c) {
  const HalfFloatTag half;
  return hn::Combine(
      FloatTag(),
      FusedMulAddHalf(hn::UpperHalf(half, a), hn::UpperHalf(half, b), hn::UpperHalf(half, c)),
      FusedMulAddHalf(hn::LowerHalf(half, a), hn::LowerHalf(half, b), hn::LowerHalf(half, c)));
}
#endif

// Flushed(x) returns x, a subnormal as a zero of its sign. FlushedMulAdd(a, b, c) returns a * b + c
// of such numbers, rounded once; a result is a zero if, rounded to 24 bits, it is less than the
// least normal number. Both as on an x86-64 processor in the mode of FlushSubnormals.
#if HWY_ARCH_X86
TESSERA_INLINE FloatRegister Flushed(FloatRegister x) { return x; }
TESSERA_INLINE FloatRegister FlushedMulAdd(FloatRegister a, FloatRegister b, FloatRegister c) {
  return FusedMulAdd(a, b, c);
}
#else
TESSERA_INLINE FloatRegister Flushed(FloatRegister x) {
  const FloatRegister zero = hn::And(x, hn::Set(FloatTag(), -0.0f));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(FloatTag(), 0x1p-126f)), zero, x);
}

// Corrects sums = a * b + c where one is the least normal number, to which numbers of 24 bits below
// it have been rounded, too. fp64 holds those sums of bf16 products exactly.
inline __attribute__((noinline)) FloatRegister ZeroWhereRoundedUp(FloatRegister a, FloatRegister b,
                                                                  FloatRegister c,
                                                                  FloatRegister sums) {
  constexpr double kLeastRoundedToNormal = 0x1.ffffffp-127;
  float x[kRegisterLanes], y[kRegisterLanes], z[kRegisterLanes], sum[kRegisterLanes];
  hn::StoreU(a, FloatTag(), x), hn::StoreU(b, FloatTag(), y);
  hn::StoreU(c, FloatTag(), z), hn::StoreU(sums, FloatTag(), sum);
  for (int i = 0; i < kRegisterLanes; ++i) {
    const double exact = double{x[i]} * double{y[i]} + double{z[i]};
    if (std::abs(exact) < kLeastRoundedToNormal) sum[i] = std::copysign(0.0f, sum[i]);
  }
  return hn::LoadU(FloatTag(), sum);
}

TESSERA_INLINE FloatRegister FlushedMulAdd(FloatRegister a, FloatRegister b, FloatRegister c) {
  const FloatRegister sum = FusedMulAdd(a, b, c), size = hn::Abs(sum);
  const FloatRegister least = hn::Set(FloatTag(), 0x1p-126f);
  if (hn::AllFalse(FloatTag(), hn::Le(size, least))) return sum;
  if (hn::AllFalse(FloatTag(), hn::Eq(size, least))) return Flushed(sum);
  return Flushed(ZeroWhereRoundedUp(a, b, c, sum));
}
#endif

// Transposes each 128-bit block of four registers: word j of register i becomes word i of register
// j.
TESSERA_INLINE void TransposeInBlocks(WordRegister* rows) {
  const hn::RepartitionToWide<WordTag> pairs;
  const auto zip_lower = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(pairs, hn::InterleaveLower(WordTag(), a, b));
  };
  const auto zip_upper = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(pairs, hn::InterleaveUpper(WordTag(), a, b));
  };
  const auto low01 = zip_lower(rows[0], rows[1]), low23 = zip_lower(rows[2], rows[3]);
  const auto high01 = zip_upper(rows[0], rows[1]), high23 = zip_upper(rows[2], rows[3]);
  rows[0] = hn::BitCast(WordTag(), hn::InterleaveLower(pairs, low01, low23));
  rows[1] = hn::BitCast(WordTag(), hn::InterleaveUpper(pairs, low01, low23));
  rows[2] = hn::BitCast(WordTag(), hn::InterleaveLower(pairs, high01, high23));
  rows[3] = hn::BitCast(WordTag(), hn::InterleaveUpper(pairs, high01, high23));
}

}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_REGISTERS_INL_H_
