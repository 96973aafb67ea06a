#include "compute/kernels/cpu/matmul_pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/matmul_pack.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstring>

#include "base/dispatch.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// All data is moved in words: two neighbours along k, which stay adjacent. Transposes a square at a
// time, with as many rows as a register has words.
constexpr int kSquare = kRegisterLanes;
constexpr int64_t kPairs = kPackRows / 2;

// b is read from memory, in pieces too short for hardware prefetching: it is prefetched this many
// blocks ahead.
constexpr int64_t kAhead = 2;

TESSERA_INLINE WordRegister LoadWords(const BFloat16* from) {
  return hn::BitCast(WordTag(), hn::LoadU(hn::Repartition<uint16_t, WordTag>(), &from->bits));
}

TESSERA_INLINE void StoreWords(WordRegister x, BFloat16* to) {
  const hn::Repartition<uint16_t, WordTag> halves;
  hn::StoreU(hn::BitCast(halves, x), halves, &to->bits);
}

// Returns in lane i the i-th element of one row and that of the next.
TESSERA_INLINE WordRegister Interleave(const BFloat16* row, const BFloat16* next) {
  const auto low = hn::PromoteTo(WordTag(), hn::LoadU(HalfTag(), &row->bits));
  const auto high = hn::PromoteTo(WordTag(), hn::LoadU(HalfTag(), &next->bits));
  return hn::Or(low, hn::ShiftLeft<16>(high));
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

TESSERA_INLINE void Transpose(WordRegister (&rows)[kSquare]) {
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

void PackColumns(const BFloat16* b, int64_t leading, bool transposed, int64_t depth,
                 BFloat16* packed) {
  for (int64_t k = 0; k < depth; k += kPackRows, packed += kPackRows * kPackColumns) {
    for (int64_t column = 0; column < kPackColumns; column += kSquare) {
      BFloat16* const to = packed + column * 2;
      if (transposed) {
        for (int64_t pair = 0; pair < kPairs; pair += kSquare) {
          WordRegister rows[kSquare];
          for (int i = 0; i < kSquare; ++i) {
            const BFloat16* from = b + (column + i) * leading + k + 2 * pair;
            __builtin_prefetch(from + kAhead * kPackRows);
            rows[i] = LoadWords(from);
          }
          Transpose(rows);
          for (int i = 0; i < kSquare; ++i) StoreWords(rows[i], to + (pair + i) * kPackColumns * 2);
        }
        continue;
      }
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const BFloat16* row = b + (k + 2 * pair) * leading + column;
        if (column % 32 == 0) {
          __builtin_prefetch(row + kAhead * kPackRows * leading);
          __builtin_prefetch(row + (kAhead * kPackRows + 1) * leading);
        }
        StoreWords(Interleave(row, row + leading), to + pair * kPackColumns * 2);
      }
    }
  }
}

// to[row][k] = from[k][row], for `rows` rows and `depth` values of k, a multiple of 2 * kSquare.
void TransposeRows(const BFloat16* from, int64_t leading, int64_t rows, int64_t depth,
                   BFloat16* to) {
  for (int64_t k = 0; k < depth; k += 2 * kSquare) {
    for (int64_t row = 0; row < rows; row += kSquare) {
      WordRegister pairs[kSquare];
      for (int i = 0; i < kSquare; ++i) {
        const BFloat16* source = from + (k + 2 * i) * leading + row;
        pairs[i] = Interleave(source, source + leading);
      }
      Transpose(pairs);
      for (int i = 0; i < kSquare; ++i) StoreWords(pairs[i], to + (row + i) * depth + k);
    }
  }
}

template <typename From, typename To>
void MoveRow(const From* from, int64_t columns, bool add, To* to) {
  if (add) {
    AddRange(to, from, columns, to);
  } else if constexpr (sizeof(From) == sizeof(To)) {
    std::memcpy(static_cast<void*>(to), from, columns * sizeof(To));
  } else {
    ConvertRange(from, columns, to);
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void PackColumns(const BFloat16* b, int64_t leading, bool transposed, int64_t depth,
                 BFloat16* packed) {
  TESSERA_CHOOSE(PackColumns)(b, leading, transposed, depth, packed);
}

void TransposeRows(const BFloat16* from, int64_t leading, int64_t rows, int64_t depth,
                   BFloat16* to) {
  TESSERA_CHOOSE(TransposeRows)(from, leading, rows, depth, to);
}

void MoveTile(DType from_dtype, const void* from, int64_t rows, int64_t columns, bool add,
              DType to_dtype, void* to, int64_t to_stride) {
  WithType(from_dtype, [&]<typename From>(From) {
    WithType(to_dtype, [&]<typename To>(To) {
      const auto move_row = TESSERA_CHOOSE(MoveRow<From, To>);
      for (int64_t row = 0; row < rows; ++row) {
        move_row(static_cast<const From*>(from) + row * columns, columns, add,
                 static_cast<To*>(to) + row * to_stride);
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
