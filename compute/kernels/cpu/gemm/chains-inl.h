// The loops that compute a tile of a product (kernels.h), for each instruction set except AMX's:
// chains of multiply-adds in registers.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_GEMM_CHAINS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_GEMM_CHAINS_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_GEMM_CHAINS_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_CHAINS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "compute/kernels/cpu/gemm/kernels.h"
#include "compute/kernels/cpu/gemm/registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

constexpr int kVectorLanes = kRegisterLanes;
// The accumulators, two registers of b and one of a fill the registers of x86-64.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 14 : HWY_TARGET == HWY_AVX2 ? 6 : 4;
static_assert(kTileRows <= kRegisterLanes);  // packing stores a step of a panel of a at once
constexpr int kTileVectors = 2;

TESSERA_INLINE FloatRegister LoadFloats(const void* from) {
  return hn::LoadU(FloatTag(), static_cast<const float*>(from));
}

// The steps by which chains grow: acc = a b + acc, for a word of a and a register of b.
struct Fast {
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    return hn::MulAdd(hn::Set(FloatTag(), *reinterpret_cast<const float*>(a)), b, acc);
  }
};

#if HWY_NATIVE_FMA
using Fused = Fast;
#else
struct Fused : Fast {
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    return FusedMulAdd(hn::Set(FloatTag(), *reinterpret_cast<const float*>(a)), b, acc);
  }
};
#endif

// A multiply-add of bf16 numbers that are widened, by the contract.
struct Widened : Fused {
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    return FlushedMulAdd(hn::Set(FloatTag(), *reinterpret_cast<const float*>(a)), b, acc);
  }
};

#if HWY_TARGET <= HWY_AVX3
// VDPBF16PS: two multiply-adds one after the other, those of the upper halves first, each rounded
// once, with subnormals flushed. No target of Highway's names the instruction.
struct Pairs {
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    const FloatRegister word = hn::Set(FloatTag(), *reinterpret_cast<const float*>(a));
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(b.raw), "v"(word.raw));
    return acc;
  }
};

// Pairs that need no register for a word of a.
struct PairsFromMemory {
  static TESSERA_INLINE FloatRegister Step(const uint32_t* a, FloatRegister b, FloatRegister acc) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc.raw) : "v"(b.raw), "m"(*a));
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

// Adds one step to the chains of a tile.
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

// Computes each element as one chain over all steps.
template <typename Step, int kRows, int kVectors>
void MultiplyChains(const gemm::Tile& tile) {
  constexpr int64_t kWidth = kVectors * kVectorLanes;
  const int64_t stride = tile.b_stride;
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  gemm::Fetcher fetcher(tile);
  FloatRegister chains[kRows][kVectors];
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    chains[row][v] = tile.from == nullptr
                         ? hn::Zero(FloatTag())
                         : LoadFloats(tile.from + row * tile.from_stride + v * kVectorLanes);
  });
  int64_t steps = tile.steps;
  for (; steps >= gemm::kStepsOfAhead; steps -= gemm::kStepsOfAhead) {
    fetcher.Fetch();
#pragma unroll
    for (int i = 0; i < gemm::kStepsOfAhead; ++i, a += kRows, b += stride) {
      for (int64_t line = 0; line < kWidth; line += 16) {
        __builtin_prefetch(b + kAhead * stride + line);
      }
      Grow<Step>(a, b, chains);
    }
  }
  for (; steps > 0; --steps, a += kRows, b += stride) Grow<Step>(a, b, chains);
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::StoreU(chains[row][v], FloatTag(), tile.to + row * tile.to_stride + v * kVectorLanes);
  });
}

// Computes, block by block, the chains of the even k and those of the odd k side by side, and adds
// their sums.
template <int kRows, int kVectors>
void MultiplyBlocks(const gemm::Tile& tile) {
  constexpr int64_t kSteps = gemm::kBlock / 2, kWidth = kVectors * kVectorLanes;
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  gemm::Fetcher fetcher(tile);
  alignas(64) float memory[kRows * kWidth];
  // The compiler does not see which memory this is: it would keep it in registers, which are full.
  float* sums = memory;
  asm("" : "+r"(sums) : : "memory");
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::Store(tile.from == nullptr
                  ? hn::Zero(FloatTag())
                  : Flushed(LoadFloats(tile.from + row * tile.from_stride + v * kVectorLanes)),
              FloatTag(), sums + row * kWidth + v * kVectorLanes);
  });
  for (int64_t block = tile.steps / gemm::kBlock; block > 0; --block) {
    // A zero that the compiler does not see: it would set the arrays in memory, and leave them.
    float zero = 0;
#if HWY_ARCH_X86
    asm("" : "+x"(zero));
#else
    asm("" : "+w"(zero));
#endif
    FloatRegister even[kRows][kVectors], odd[kRows][kVectors];
    ForRegisters<kRows, kVectors>(
        [&](int row, int v) HWY_ATTR { even[row][v] = odd[row][v] = hn::Set(FloatTag(), zero); });
#pragma unroll 4
    for (int step = 0; step < kSteps; ++step, a += kRows, b += kWidth) {
      if (step % 2 == 0) fetcher.Fetch();
      for (int64_t line = 0; line < kWidth; line += 16) {
        __builtin_prefetch(b + 2 * kSteps * kWidth + line);
        __builtin_prefetch(b + 3 * kSteps * kWidth + line);
      }
      Grow<Widened>(a, b, even);
      Grow<Widened>(a + kSteps * kRows, b + kSteps * kWidth, odd);
    }
    a += kSteps * kRows;
    b += kSteps * kWidth;
    ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
      float* const sum = sums + row * kWidth + v * kVectorLanes;
      const FloatRegister both = Flushed(hn::Add(even[row][v], odd[row][v]));
      hn::Store(Flushed(hn::Add(LoadFloats(sum), both)), FloatTag(), sum);
    });
  }
  ForRegisters<kRows, kVectors>([&](int row, int v) HWY_ATTR {
    hn::StoreU(LoadFloats(sums + row * kWidth + v * kVectorLanes), FloatTag(),
               tile.to + row * tile.to_stride + v * kVectorLanes);
  });
}

#if HWY_TARGET <= HWY_AVX3
// As many rows as 30 registers allow: two chains and a sum for each element.
constexpr int kRowsOfPass = 5;
constexpr int kRowsOfPasses = 3 * kRowsOfPass;
static_assert(kRowsOfPasses <= kRegisterLanes);      // packed at once
constexpr int64_t kBlockOfPairs = gemm::kBlock / 2;  // its steps

// Computes rows [row, row + kRows) of a tile of `rows` rows. The sums of blocks stay in registers:
// on Zen 4 a store takes as long as VDPBF16PS, while an addition takes no time beside it. The first
// rows fetch the memory that is needed soon.
template <int kRows, int kVectors>
void MultiplyPass(const gemm::Tile& tile, int64_t rows, int64_t row) {
  constexpr int64_t kSteps = kBlockOfPairs / 2, kWidth = kVectors * kVectorLanes;
  const uint32_t* a = tile.a + row;
  const uint32_t* b = tile.b;
  gemm::Fetcher fetcher(tile);
  const float* const from = tile.from == nullptr ? nullptr : tile.from + row * tile.from_stride;
  FloatRegister sums[kRows][kVectors];
  ForRegisters<kRows, kVectors>([&](int i, int v) HWY_ATTR {
    sums[i][v] = from == nullptr ? hn::Zero(FloatTag())
                                 : LoadFloats(from + i * tile.from_stride + v * kVectorLanes);
  });
  for (int64_t block = tile.steps / kBlockOfPairs; block > 0; --block) {
    FloatRegister chains[2][kRows][kVectors];
#pragma unroll
    for (auto& chain : chains) {
      ForRegisters<kRows, kVectors>([&](int i, int v) HWY_ATTR {
        chain[i][v] = hn::Zero(FloatTag());
        asm("" : "+v"(chain[i][v].raw));  // or zeros would be copies of one register
      });
#pragma unroll 1
      for (int step = 0; step < kSteps; step += gemm::kStepsOfAhead) {
        if (row == 0) fetcher.Fetch();
#pragma unroll
        for (int i = 0; i < gemm::kStepsOfAhead; ++i, a += rows, b += kWidth) {
          for (int64_t line = 0; line < kWidth; line += 16) {
            __builtin_prefetch(b + 2 * kSteps * kWidth + line);
          }
          Grow<PairsFromMemory>(a, b, chain);
        }
      }
    }
    ForRegisters<kRows, kVectors>([&](int i, int v) HWY_ATTR {
      sums[i][v] = hn::Add(sums[i][v], hn::Add(chains[0][i][v], chains[1][i][v]));
    });
  }
  float* const to = tile.to + row * tile.to_stride;
  ForRegisters<kRows, kVectors>([&](int i, int v) HWY_ATTR {
    hn::StoreU(sums[i][v], FloatTag(), to + i * tile.to_stride + v * kVectorLanes);
  });
}

// Multiplies a tile in passes of near-equal height.
template <int kRows, int kVectors, int kRow = 0>
void MultiplyInPasses(const gemm::Tile& tile) {
  constexpr int kLeft = kRows - kRow, kPasses = (kLeft + kRowsOfPass - 1) / kRowsOfPass;
  constexpr int kHeight = (kLeft + kPasses - 1) / kPasses;
  MultiplyPass<kHeight, kVectors>(tile, kRows, kRow);
  if constexpr (kPasses > 1) MultiplyInPasses<kRows, kVectors, kRow + kHeight>(tile);
}
#endif

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_CHAINS_INL_H_
