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
#include "compute/kernels/cpu/gemm/registers-inl.h"
#include "tensor/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// All data is moved in words: one fp32 number, or two neighbours along k in bf16. A group is as
// many words of as many rows, packed at once. If registers suffice, a row of a group is a cache
// line, because the lines of many rows may compete for a place in the cache.
constexpr int kRows = kRegisterLanes;
constexpr int kGroup = kRegisterLanes == 16 ? 16 : 8;

TESSERA_INLINE WordRegister LoadWords(const void* from) {
  return hn::LoadU(WordTag(), static_cast<const uint32_t*>(from));
}

// Loads the 128-bit blocks at `from`, `from` + stride, ..., side by side.
template <typename Tag>
TESSERA_INLINE hn::Vec<Tag> LoadBlocks(Tag tag, const char* from, int64_t stride) {
  if constexpr (hn::MaxLanes(tag) == 4) {
    return hn::LoadU(tag, reinterpret_cast<const uint32_t*>(from));
  } else {
    constexpr hn::FixedTag<uint32_t, hn::MaxLanes(tag) / 2> half;
    constexpr int64_t kBlocks = hn::MaxLanes(half) / 4;
    return hn::Combine(tag, LoadBlocks(half, from + kBlocks * stride, stride),
                       LoadBlocks(half, from, stride));
  }
}

// Reads words of a source: lanes are rows.
template <typename T>
class Reader {
 public:
  static constexpr int64_t kPerWord = sizeof(uint32_t) / sizeof(T);  // of k

  TESSERA_INLINE Reader(const gemm::Source& source, int64_t depth)
      : source_(source), depth_(depth) {}

  // Sets words[i] to the i-th word after k of the rows from `row` on: zeros after the end of k,
  // anything in lanes without a row.
  TESSERA_INLINE void Group(int64_t k, int64_t row, WordRegister* words) const {
    if (source_.k_dense) return Transposed(k, row, words);
    for (int i = 0; i < kGroup; ++i) words[i] = SideBySide(k + i * kPerWord, row);
  }

 private:
  static constexpr int64_t kDepth = kGroup * kPerWord;  // of a group

  TESSERA_INLINE const T* At(int64_t slow, int64_t fast) const {
    return static_cast<const T*>(source_.first) + slow * source_.leading + fast;
  }

  TESSERA_INLINE void Transposed(int64_t k, int64_t row, WordRegister* words) const {
    const T* from = At(row, k);
    int64_t leading = source_.leading;
    T part[kRows * kDepth];
    if (const int64_t rows = source_.available - row, depth = depth_ - k;
        rows >= kRows && depth >= kDepth) {
      for (int i = 0; i < kRows; ++i) __builtin_prefetch(At(row + i, k + kFar * kPerWord));
    } else {
      std::memset(static_cast<void*>(part), 0, sizeof(part));
      for (int64_t i = 0; i < std::min<int64_t>(kRows, rows); ++i) {
        std::memcpy(part + i * kDepth, At(row + i, k),
                    std::clamp<int64_t>(depth, 0, kDepth) * sizeof(T));
      }
      from = part, leading = kDepth;
    }
    for (int i = 0; i < 4; ++i, from += leading) {
      for (int j = 0; j < kGroup; j += 4) {
        words[i + j] = LoadBlocks(WordTag(), reinterpret_cast<const char*>(from + j * kPerWord),
                                  4 * leading * static_cast<int64_t>(sizeof(T)));
      }
    }
    for (int j = 0; j < kGroup; j += 4) TransposeInBlocks(words + j);
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

  // Returns the bits of the rows at k.
  TESSERA_INLINE WordRegister Row(int64_t k, int64_t row) const {
    const T* from = At(k, row);
    T part[kRows] = {};
    if (const int64_t rows = source_.available - row; rows < kRows) {
      std::memcpy(part, from, rows * sizeof(T));
      from = part;
    }
    if constexpr (kPerWord == 1) {
      return LoadWords(from);
    } else {
      return hn::PromoteTo(WordTag(), hn::LoadU(HalfTag(), &from->bits));
    }
  }

  // Distances of prefetching, in rows of k and in words along it: rows are read in pieces too short
  // for hardware prefetching.
  static constexpr int64_t kAhead = 16, kFar = 64;

  const gemm::Source source_;
  const int64_t depth_;
};

TESSERA_INLINE void StoreStep(WordRegister x, int64_t step, int64_t stride, uint32_t* to) {
  hn::StoreU(x, WordTag(), to + step * stride);
}

// Calls store(step, word, row) for all words, in ascending order of steps, since each may overwrite
// the beginning of the next. k is filled up to a multiple of kBlock.
template <typename T, int64_t kBlock = Reader<T>::kPerWord, typename Store>
TESSERA_INLINE void ForWords(const gemm::Source& source, int64_t depth, Store store) {
  const Reader<T> reader(source, depth);
  const int64_t all = (depth + kBlock - 1) / kBlock * (kBlock / Reader<T>::kPerWord);
  // Memory is read in the order in which it lies.
  const int64_t part = source.k_dense ? all : kGroup;
  for (int64_t first = 0; first < all; first += part) {
    for (int64_t row = 0; row < source.width; row += kRows) {
      for (int64_t i = first; i < std::min(all, first + part); i += kGroup) {
        WordRegister words[kGroup];
        reader.Group(i * Reader<T>::kPerWord, row, words);
        for (int64_t j = 0; j < kGroup; ++j) {
          if (i + j < all) store(i + j, words[j], row);
        }
      }
    }
  }
}

template <typename T, int64_t kBlock = Reader<T>::kPerWord>
void PackWords(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  ForWords<T, kBlock>(source, depth, [&](int64_t i, WordRegister word, int64_t row) HWY_ATTR {
    StoreStep(word, i, stride, to + row);
  });
}

// Packs bf16 as fp32.
void PackWidened(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const WordRegister high = hn::Set(WordTag(), 0xffff0000u);
  ForWords<BFloat16>(source, depth, [&](int64_t i, WordRegister word, int64_t row) HWY_ATTR {
    StoreStep(hn::ShiftLeft<16>(word), 2 * i, stride, to + row);
    if (2 * i + 1 < depth) StoreStep(hn::And(word, high), 2 * i + 1, stride, to + row);
  });
}

// Calls store(words, row, to) for all words of each block, which becomes kSteps steps.
template <int64_t kSteps, typename Store>
TESSERA_INLINE void ForBlocks(const gemm::Source& source, int64_t depth, int64_t stride,
                              uint32_t* to, Store store) {
  const Reader<BFloat16> reader(source, depth);
  for (int64_t k = 0; k < depth; k += gemm::kBlock, to += kSteps * stride) {
    for (int64_t row = 0; row < source.width; row += kRows) {
      WordRegister words[gemm::kBlock / 2];
      for (int i = 0; i < gemm::kBlock / 2; i += kGroup) reader.Group(k + 2 * i, row, words + i);
      store(words, to + row);
    }
  }
}

// Packs bf16 as fp32: in each block the even k, then the odd ones.
void PackWidenedBlocks(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const WordRegister high = hn::Set(WordTag(), 0xffff0000u);
  constexpr int kHalf = gemm::kBlock / 2;
  ForBlocks<gemm::kBlock>(source, depth, stride, to,
                          [&](const WordRegister* words, uint32_t* block) HWY_ATTR {
                            const auto store = [&](WordRegister word, int step) HWY_ATTR {
                              const auto number = Flushed(hn::BitCast(FloatTag(), word));
                              StoreStep(hn::BitCast(WordTag(), number), step, stride, block);
                            };
                            for (int i = 0; i < kHalf; ++i) store(hn::ShiftLeft<16>(words[i]), i);
                            for (int i = 0; i < kHalf; ++i) {
                              store(hn::And(words[i], high), kHalf + i);
                            }
                          });
}

// Packs bf16 in pairs, in each block the even k, then the odd ones. The first of a pair is the
// upper half, which VDPBF16PS takes first.
[[maybe_unused]] void PackPairBlocks(const gemm::Source& source, int64_t depth, int64_t stride,
                                     uint32_t* to) {
  const WordRegister high = hn::Set(WordTag(), 0xffff0000u), low = hn::Set(WordTag(), 0xffffu);
  constexpr int kHalf = gemm::kBlock / 2;
  ForBlocks<kHalf>(
      source, depth, stride, to, [&](const WordRegister* words, uint32_t* block) HWY_ATTR {
        for (int i = 0; i < kHalf; i += 2) {
          const WordRegister even = hn::Or(hn::ShiftLeft<16>(words[i]), hn::And(words[i + 1], low));
          StoreStep(even, i / 2, stride, block);
        }
        for (int i = 0; i < kHalf; i += 2) {
          const WordRegister odd =
              hn::Or(hn::And(words[i], high), hn::ShiftRight<16>(words[i + 1]));
          StoreStep(odd, (kHalf + i) / 2, stride, block);
        }
      });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_PACK_INL_H_
