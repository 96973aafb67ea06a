#include "compute/kernels/cpu/gemm/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/gemm/kernels.cc"
#include <cpuid.h>
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <bit>
#include <cstdint>
#include <utility>

#include "base/cpu_level.h"
#include "base/dispatch.h"
#include "compute/kernels/cpu/gemm/pack-inl.h"
#include "compute/tensor/bfloat16.h"
#include "layout/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

constexpr int kVectorLanes = kRegisterLanes;
// The accumulators, two registers of b and one of a fill the registers.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 14 : HWY_TARGET == HWY_AVX2 ? 6 : 4;
constexpr int kTileVectors = 2;

TESSERA_INLINE FloatRegister LoadFloats(const void* from) {
  return hn::LoadU(FloatTag(), static_cast<const float*>(from));
}

// a * b + c, rounded once, without an instruction for it. The product is exact in fp64. The sum is
// rounded to odd there, so that rounding it again to fp32 is as if it had been exact.
[[maybe_unused]] TESSERA_INLINE float FusedMultiplyAdd(float a, float b, float c) {
  const double product = double{a} * double{b}, addend = c;
  const double sum = product + addend;
  const double from_addend = sum - product;
  const double lost = (product - (sum - from_addend)) + (addend - from_addend);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if ((lost > 0 || lost < 0) && bits % 2 == 0) bits += (lost > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(std::bit_cast<double>(bits));
}

// The steps by which chains grow: acc = a b + acc, for a word of a and a register of b.
struct Fast {
  static constexpr int64_t kStepsOfBlock = gemm::kBlock;
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    return hn::MulAdd(hn::Set(FloatTag(), *reinterpret_cast<const float*>(a)), b, acc);
  }
};

#if HWY_NATIVE_FMA
using Fused = Fast;
#else
struct Fused {
  static constexpr int64_t kStepsOfBlock = gemm::kBlock;
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    float x[kVectorLanes], sum[kVectorLanes];
    hn::StoreU(b, FloatTag(), x);
    hn::StoreU(acc, FloatTag(), sum);
    for (int i = 0; i < kVectorLanes; ++i) {
      sum[i] = FusedMultiplyAdd(*reinterpret_cast<const float*>(a), x[i], sum[i]);
    }
    return LoadFloats(sum);
  }
};
#endif

#if HWY_TARGET <= HWY_AVX3
// VDPBF16PS: two multiply-adds one after the other, those of the upper halves first, each rounded
// once, with subnormals flushed. No target of Highway's names the instruction.
struct Pairs {
  static constexpr int64_t kStepsOfBlock = gemm::kBlock / 2;
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    const FloatRegister word = hn::Set(FloatTag(), *reinterpret_cast<const float*>(a));
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(b.raw), "v"(word.raw));
    return acc;
  }
};
#endif

// Calls body(row, v) for each register of a tile.
template <int kRows, int kVectors, typename Body>
TESSERA_INLINE void ForRegisters(Body body) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) body(row, v);
  }
}

// The chains of a tile grow by one step.
template <typename Step, int kRows, int kVectors>
TESSERA_INLINE void Grow(const uint32_t* a, const uint32_t* b,
                         FloatRegister (&chains)[kRows][kVectors]) {
  FloatRegister columns[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) columns[v] = LoadFloats(b + v * kVectorLanes);
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    chains[row][v] = Step::Step(a + row, columns[v], chains[row][v]);
  });
}

// How far ahead of its use a panel of b is fetched from the second-level cache, in steps.
constexpr int kAhead = 8;

// One chain over all steps for each element.
template <typename Step, int kRows, int kVectors>
void MultiplyFp32(int64_t depth, const uint32_t* a, const uint32_t* b, const float* from,
                  int64_t from_stride, float* to, int64_t to_stride) {
  constexpr int64_t kWidth = kVectors * kVectorLanes;
  FloatRegister chains[kRows][kVectors];
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    __builtin_prefetch(to + row * to_stride + v * kVectorLanes, 1);
    chains[row][v] = from == nullptr ? hn::Zero(FloatTag())
                                     : LoadFloats(from + row * from_stride + v * kVectorLanes);
  });
#pragma unroll 2
  for (int64_t step = 0; step < depth; ++step, a += kRows, b += kWidth) {
    __builtin_prefetch(b + kAhead * kWidth);
    __builtin_prefetch(b + kAhead * kWidth + kWidth / 2);
    Grow<Step>(a, b, chains);
  }
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::StoreU(chains[row][v], FloatTag(), to + row * to_stride + v * kVectorLanes);
  });
}

// Block by block the chains of the even k and those of the odd ones, side by side; then their sums
// are added.
template <typename Step, int kRows, int kVectors>
void MultiplyBf16(int64_t depth, const uint32_t* a, const uint32_t* b, const float* from,
                  int64_t from_stride, float* to, int64_t to_stride) {
  constexpr int64_t kSteps = Step::kStepsOfBlock / 2, kWidth = kVectors * kVectorLanes;
  alignas(64) float memory[kRows * kWidth];
  // The compiler does not see which memory this is: it would keep it in registers, which are full.
  float* sums = memory;
  asm("" : "+r"(sums) : : "memory");
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::Store(from == nullptr ? hn::Zero(FloatTag())
                              : LoadFloats(from + row * from_stride + v * kVectorLanes),
              FloatTag(), sums + row * kWidth + v * kVectorLanes);
  });
  for (int64_t k = 0; k < depth; k += gemm::kBlock) {
    // A zero that the compiler does not see: it would set the arrays in memory, and leave them.
    float zero = 0;
    asm("" : "+x"(zero));
    FloatRegister even[kRows][kVectors], odd[kRows][kVectors];
    ForRegisters<kRows, kVectors>(
        [&](int row, int v) HWY_ATTR { even[row][v] = odd[row][v] = hn::Set(FloatTag(), zero); });
    for (int64_t step = 0; step < kSteps; ++step, a += kRows, b += kWidth) {
      __builtin_prefetch(b + 2 * kSteps * kWidth);
      __builtin_prefetch(b + 3 * kSteps * kWidth);
      Grow<Step>(a, b, even);
      Grow<Step>(a + kSteps * kRows, b + kSteps * kWidth, odd);
    }
    a += kSteps * kRows;
    b += kSteps * kWidth;
    ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
      float* const sum = sums + row * kWidth + v * kVectorLanes;
      hn::Store(hn::Add(LoadFloats(sum), hn::Add(even[row][v], odd[row][v])), FloatTag(), sum);
    });
  }
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::StoreU(LoadFloats(sums + row * kWidth + v * kVectorLanes), FloatTag(),
               to + row * to_stride + v * kVectorLanes);
  });
}

template <typename Step, int... kRow>
constexpr gemm::Kernels Fp32Kernels(std::integer_sequence<int, kRow...>) {
  return {kTileRows,
          kTileVectors * kVectorLanes,
          1,
          PackFp32,
          {{MultiplyFp32<Step, kRow + 1, 1>, MultiplyFp32<Step, kRow + 1, 2>}...}};
}

template <typename Step, int... kRow>
constexpr gemm::Kernels Bf16Kernels(gemm::PackFunction pack, std::integer_sequence<int, kRow...>) {
  return {kTileRows / 2,
          kTileVectors * kVectorLanes,
          gemm::kBlock / Step::kStepsOfBlock,
          pack,
          {{MultiplyBf16<Step, kRow + 1, 1>, MultiplyBf16<Step, kRow + 1, 2>}...}};
}

const gemm::Kernels& Choose(DType input, bool fused, bool has_bf16) {
  constexpr auto kRows = std::make_integer_sequence<int, kTileRows>();
  constexpr auto kHalf = std::make_integer_sequence<int, kTileRows / 2>();  // of two chains each
  static constexpr gemm::Kernels kFp32[] = {Fp32Kernels<Fast>(kRows), Fp32Kernels<Fused>(kRows)};
  if (input == DType::kF32) return kFp32[fused ? 1 : 0];
#if HWY_TARGET <= HWY_AVX3
  static constexpr gemm::Kernels kPairs = Bf16Kernels<Pairs>(PackPairs, kHalf);
  if (has_bf16) return kPairs;
#else
  static_cast<void>(has_bf16);
#endif
  static constexpr gemm::Kernels kWidened[] = {Bf16Kernels<Fast>(PackWidened, kHalf),
                                               Bf16Kernels<Fused>(PackWidened, kHalf)};
  return kWidened[fused ? 1 : 0];
}

template <typename In, typename Out>
void Finish(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, const In* bias,
            Out* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row, tile += tile_stride, to += to_stride) {
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = Out(bias == nullptr ? tile[i] : tile[i] + static_cast<float>(bias[i]));
    }
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::gemm {
namespace {

// AVX-512's bf16 instructions, unless TESSERA_CPU limits instructions to what was before them.
bool HasBf16() {
  if (CpuLevelLimit().has_value()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

}  // namespace

const Kernels& KernelsFor(DType input, bool fused) {
  static const bool has_bf16 = HasBf16();
  return TESSERA_CHOOSE(Choose)(input, fused, has_bf16);
}

void FinishTile(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, DType input,
                const void* bias, DType output, void* to, int64_t to_stride) {
  const auto with = [&]<typename In, typename Out>(In, Out) {
    TESSERA_CHOOSE(Finish<In, Out>)
    (tile, tile_stride, rows, columns, static_cast<const In*>(bias), static_cast<Out*>(to),
     to_stride);
  };
  if (input == DType::kF32) {
    CHECK(output == DType::kF32);
    with(float{}, float{});
  } else if (output == DType::kF32) {
    with(BFloat16{}, float{});
  } else {
    with(BFloat16{}, BFloat16{});
  }
}

}  // namespace tessera::gemm
#endif  // HWY_ONCE
