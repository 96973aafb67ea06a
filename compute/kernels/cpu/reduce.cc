// Sums over a tensor in fp64: blocks of a fixed size, then a binary tree over the blocks.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/reduce.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked_math.h"
#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

constexpr int kStreams = 4;  // independent sums, which hide the latency of an addition
// Distance of prefetching. These loops only read, and hardware prefetching ends at a page boundary:
// 26 GB/s without this, 45 with it, on two cores that can read 50.
constexpr int64_t kPrefetchBytes = 16384;
constexpr int64_t kCacheLine = 64;

// Eight numbers in fp64.
constexpr int kWideLanes = 8;
using WideTag = hn::CappedTag<double, kWideLanes>;
using NarrowTag = hn::Rebind<float, WideTag>;
constexpr int kWideRegisterLanes = HWY_LANES(double) < kWideLanes ? HWY_LANES(double) : kWideLanes;
constexpr int kWideRegisters = kWideLanes / kWideRegisterLanes;

struct F64x8 {
  hn::Vec<WideTag> parts[kWideRegisters];
};

TESSERA_INLINE F64x8 Zeros() {
  F64x8 x;
  for (auto& part : x.parts) part = hn::Zero(WideTag());
  return x;
}

TESSERA_INLINE F64x8 operator+(F64x8 a, const F64x8& b) {
  for (int i = 0; i < kWideRegisters; ++i) a.parts[i] = hn::Add(a.parts[i], b.parts[i]);
  return a;
}

// The product of fp32 numbers is exact in fp64: a multiply-add gives the same fused or not.
TESSERA_INLINE F64x8 AddSquares(const F64x8& x, F64x8 sums) {
  for (int i = 0; i < kWideRegisters; ++i) {
    sums.parts[i] = hn::MulAdd(x.parts[i], x.parts[i], sums.parts[i]);
  }
  return sums;
}

TESSERA_INLINE F64x8 LoadWide(const float* from) {
  F64x8 x;
  for (int i = 0; i < kWideRegisters; ++i) {
    const auto narrow = hn::LoadU(NarrowTag(), from + i * kWideRegisterLanes);
    x.parts[i] = hn::PromoteTo(WideTag(), narrow);
  }
  return x;
}

TESSERA_INLINE F64x8 LoadWide(const BFloat16* from) {
  using Words = hn::RebindToUnsigned<NarrowTag>;
  using Halves = hn::Rebind<uint16_t, WideTag>;
  F64x8 x;
  for (int i = 0; i < kWideRegisters; ++i) {
    const auto bits = hn::LoadU(Halves(), &from[i * kWideRegisterLanes].bits);
    const auto words = hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits));
    x.parts[i] = hn::PromoteTo(WideTag(), hn::BitCast(NarrowTag(), words));
  }
  return x;
}

template <bool kSquares, typename T>
double SumBlock(const T* x, int64_t count) {
  F64x8 sums[kStreams] = {Zeros(), Zeros(), Zeros(), Zeros()};
  constexpr int64_t kStep = kWideLanes * kStreams;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const char* ahead = reinterpret_cast<const char*>(x + i) + kPrefetchBytes;
    for (int64_t line = 0; line < kStep * static_cast<int64_t>(sizeof(T)); line += kCacheLine) {
      __builtin_prefetch(ahead + line, /*rw=*/0, /*locality=*/2);
    }
    for (int s = 0; s < kStreams; ++s) {
      const F64x8 value = LoadWide(x + i + kWideLanes * s);
      sums[s] = kSquares ? AddSquares(value, sums[s]) : sums[s] + value;
    }
  }
  double total = Reduce((sums[0] + sums[1]) + (sums[2] + sums[3]),
                        [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
  for (; i < count; ++i) {
    const double value = static_cast<float>(x[i]);
    total += kSquares ? value * value : value;
  }
  return total;
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int64_t kBlock = 65536;

// T(0, n) of at least one number, which it overwrites.
double SumInTree(std::span<double> sums) {
  for (size_t step = 1; step < sums.size(); step *= 2) {
    for (size_t i = 0; i + step < sums.size(); i += 2 * step) sums[i] += sums[i + step];
  }
  return sums[0];
}

}  // namespace

double CpuBackend::BlockedSum(TensorView x, bool squares) {
  const int64_t count = x.elements();
  if (count == 0) return 0;
  std::vector<double> sums(CeilDivide(count, kBlock));
  WithType(x.dtype(), [&]<typename T>(T) {
    const auto sum_block =
        squares ? TESSERA_CHOOSE(SumBlock<true, T>) : TESSERA_CHOOSE(SumBlock<false, T>);
    ForRanges(pool_, count, kBlock, [&](int64_t begin, int64_t end, int) {
      sums[begin / kBlock] = sum_block(x.as<T>() + begin, end - begin);
    });
  });
  return SumInTree(sums);
}

void CpuBackend::Run(const ops::SumsOfSquares& op) {
  std::vector<double> blocks;
  for (size_t p = 0; p < op.parts.size(); ++p) {
    const TensorView& x = op.parts[p];
    const int64_t count = x.empty() ? 0 : x.elements();
    blocks.resize(CeilDivide(count, op.block));
    if (count == 0) {
      op.sums[p] = 0;
      continue;
    }
    WithType(x.dtype(), [&]<typename T>(T) {
      const auto sum_block = TESSERA_CHOOSE(SumBlock<true, T>);
      const int64_t blocks_per_task = std::max<int64_t>(1, kBlock / op.block);
      ForRanges(pool_, static_cast<int64_t>(blocks.size()), blocks_per_task,
                [&](int64_t first, int64_t last, int) {
                  for (int64_t i = first; i < last; ++i) {
                    const int64_t begin = i * op.block;
                    blocks[i] = sum_block(x.as<T>() + begin, std::min(op.block, count - begin));
                  }
                });
    });
    op.sums[p] = SumInTree(blocks);
  }
}

double CpuBackend::Run(const ops::SumOfSquares& op) { return BlockedSum(op.x, true); }

double CpuBackend::Run(const ops::Sum& op) {
  const double sum = BlockedSum(op.x, false);
  if (op.later != nullptr) *op.later = sum;
  return sum;
}

}  // namespace tessera
#endif  // HWY_ONCE
