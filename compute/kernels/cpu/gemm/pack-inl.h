// Packing of panels (kernels.h), for each instruction set.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compute/kernels/cpu/gemm/kernels.h"
#include "compute/tensor/bfloat16.h"

#ifndef TESSERA_INLINE
#define TESSERA_INLINE inline __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A register of at most sixteen numbers.
using FloatTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;  // as many lanes as a register of FloatTag
using FloatRegister = hn::Vec<FloatTag>;
using WordRegister = hn::Vec<WordTag>;
constexpr int kRegisterLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

// All data is moved in words: one fp32 number, or two neighbours along k in bf16. A square has as
// many words of as many rows as a register has lanes; a group is what is packed at once: of bf16 a
// block of k.
constexpr int kSquare = kRegisterLanes;
constexpr int kGroup = 16;

TESSERA_INLINE WordRegister LoadWords(const void* from) {
  return hn::LoadU(WordTag(), static_cast<const uint32_t*>(from));
}

// The first `count` bytes, then zeros.
TESSERA_INLINE WordRegister LoadBytes(const void* from, int64_t count) {
  uint32_t words[kSquare] = {};
  std::memcpy(words, from, count);
  return LoadWords(words);
}

// In each 128-bit block of four registers: word j of register i becomes word i of register j.
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

// Exchanges the upper half of `low` with the lower half of `high`.
[[maybe_unused]] TESSERA_INLINE void ExchangeHalves(WordRegister& low, WordRegister& high) {
  const WordRegister lower = hn::ConcatLowerLower(WordTag(), high, low);
  high = hn::ConcatUpperUpper(WordTag(), high, low);
  low = lower;
}

// Exchanges the odd 128-bit blocks of `low` with the even ones of `high`.
[[maybe_unused]] TESSERA_INLINE void ExchangeBlocks(WordRegister& low, WordRegister& high) {
  const WordRegister even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high), low);
  high = hn::OddEvenBlocks(high, hn::SwapAdjacentBlocks(low));
  low = even;
}

TESSERA_INLINE void Transpose(WordRegister* rows) {
  static_assert(kSquare == 4 || kSquare == 8 || kSquare == 16);
  if constexpr (kSquare > 4) {
    for (int i = 0; i < kSquare / 2; ++i) ExchangeHalves(rows[i], rows[i + kSquare / 2]);
  }
  if constexpr (kSquare == 16) {
    for (int i = 0; i < 16; ++i) {
      if (i % 8 < 4) ExchangeBlocks(rows[i], rows[i + 4]);
    }
  }
  for (int i = 0; i < kSquare; i += 4) TransposeInBlocks(rows + i);
}

// Reads words of a source: lanes are rows.
template <typename T>
class Reader {
 public:
  static constexpr int64_t kPerWord = sizeof(uint32_t) / sizeof(T);  // of k

  TESSERA_INLINE Reader(const gemm::Source& source, int64_t depth)
      : source_(source), depth_(depth) {}

  // words[i]: the i-th word after k of the rows from `row` on. Zeros after the end of k, anything
  // in lanes without a row.
  TESSERA_INLINE void Group(int64_t k, int64_t row, WordRegister* words) const {
    for (int i = 0; i < kGroup; i += kSquare) {
      const int64_t first = k + i * kPerWord;
      if (source_.k_dense) {
        DenseSquare(first, row, words + i);
      } else {
        for (int j = 0; j < kSquare; ++j) words[i + j] = SideBySide(first + j * kPerWord, row);
      }
    }
  }

 private:
  TESSERA_INLINE const T* At(int64_t slow, int64_t fast) const {
    return static_cast<const T*>(source_.first) + slow * source_.leading + fast;
  }

  TESSERA_INLINE void DenseSquare(int64_t k, int64_t row, WordRegister* words) const {
    const int64_t rest = std::min<int64_t>(kSquare * kPerWord, depth_ - k);
    if (rest <= 0) {
      for (int i = 0; i < kSquare; ++i) words[i] = hn::Zero(WordTag());
      return;
    }
    const int64_t last = source_.width - 1 - row;
    if (rest == kSquare * kPerWord && last >= kSquare - 1) {
      const T* from = At(row, k);
      for (int i = 0; i < kSquare; ++i, from += source_.leading) {
        __builtin_prefetch(from + kFar * kPerWord);
        words[i] = LoadWords(from);
      }
    } else {
      for (int i = 0; i < kSquare; ++i) {
        const T* const from = At(row + std::min<int64_t>(i, last), k);
        words[i] = LoadBytes(from, rest * static_cast<int64_t>(sizeof(T)));
      }
    }
    Transpose(words);
  }

  TESSERA_INLINE WordRegister SideBySide(int64_t k, int64_t row) const {
    if (k >= depth_) return hn::Zero(WordTag());
    __builtin_prefetch(At(k + kAhead, row));
    if constexpr (kPerWord == 1) {
      return Row(k, row);
    } else {
      const WordRegister low = Row(k, row);
      return k + 1 == depth_ ? low : hn::Or(low, hn::ShiftLeft<16>(Row(k + 1, row)));
    }
  }

  // Bits of the rows at k.
  TESSERA_INLINE WordRegister Row(int64_t k, int64_t row) const {
    const T* const from = At(k, row);
    const int64_t rest = std::min<int64_t>(kSquare, source_.available - row);
    if constexpr (kPerWord == 1) {
      return rest == kSquare ? LoadWords(from) : LoadBytes(from, rest * 4);
    } else {
      uint16_t part[kSquare] = {};
      if (rest < kSquare) std::memcpy(part, from, rest * 2);
      const uint16_t* const bits = rest < kSquare ? part : &from->bits;
      return hn::PromoteTo(WordTag(), hn::LoadU(HalfTag(), bits));
    }
  }

  // Rows are read in pieces too short for hardware prefetching: how far ahead, in rows of k and in
  // words along it.
  static constexpr int64_t kAhead = 16, kFar = 64;

  const gemm::Source source_;
  const int64_t depth_;
};

TESSERA_INLINE void StoreStep(WordRegister x, int64_t step, int64_t stride, uint32_t* to) {
  hn::StoreU(x, WordTag(), to + step * stride);
}

// Steps in ascending order, since each may overwrite the beginning of the next.
void PackFp32(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const Reader<float> reader(source, depth);
  for (int64_t k = 0; k < depth; k += kGroup) {
    for (int64_t row = 0; row < source.width; row += kSquare) {
      WordRegister words[kGroup];
      reader.Group(k, row, words);
      const int64_t steps = std::min<int64_t>(kGroup, depth - k);
      for (int i = 0; i < kGroup; ++i) {
        if (i < steps) StoreStep(words[i], k + i, stride, to + row);
      }
    }
  }
}

// The even k of a block, then the odd ones, as fp32.
void PackWidened(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const Reader<BFloat16> reader(source, depth);
  const WordRegister high = hn::Set(WordTag(), 0xffff0000u);
  for (int64_t k = 0; k < depth; k += gemm::kBlock, to += gemm::kBlock * stride) {
    for (int64_t row = 0; row < source.width; row += kSquare) {
      WordRegister words[kGroup];
      reader.Group(k, row, words);
      for (int i = 0; i < kGroup; ++i) {
        StoreStep(hn::ShiftLeft<16>(words[i]), i, stride, to + row);
      }
      for (int i = 0; i < kGroup; ++i) {
        StoreStep(hn::And(words[i], high), kGroup + i, stride, to + row);
      }
    }
  }
}

// The same order, in pairs: the first of a pair is the upper half, which VDPBF16PS takes first.
[[maybe_unused]] void PackPairs(const gemm::Source& source, int64_t depth, int64_t stride,
                                uint32_t* to) {
  const Reader<BFloat16> reader(source, depth);
  const WordRegister high = hn::Set(WordTag(), 0xffff0000u), low = hn::Set(WordTag(), 0xffffu);
  for (int64_t k = 0; k < depth; k += gemm::kBlock, to += gemm::kBlock / 2 * stride) {
    for (int64_t row = 0; row < source.width; row += kSquare) {
      WordRegister words[kGroup];
      reader.Group(k, row, words);
      for (int i = 0; i < kGroup; i += 2) {
        const WordRegister even = hn::Or(hn::ShiftLeft<16>(words[i]), hn::And(words[i + 1], low));
        StoreStep(even, i / 2, stride, to + row);
      }
      for (int i = 0; i < kGroup; i += 2) {
        const WordRegister odd = hn::Or(hn::And(words[i], high), hn::ShiftRight<16>(words[i + 1]));
        StoreStep(odd, kGroup / 2 + i / 2, stride, to + row);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_
