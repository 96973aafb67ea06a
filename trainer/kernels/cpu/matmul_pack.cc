#include "trainer/kernels/cpu/matmul_pack.h"

#include <cstdint>
#include <cstring>

#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"

namespace tessera {
namespace {

// Everything moves in words: two neighbours of k, which stay side by side.
constexpr int64_t kPairs = kPackRows / 2;

// b comes from memory, in pieces too short for the processor to foresee: it is fetched so many blocks
// ahead.
constexpr int64_t kAhead = 2;

TESSERA_INLINE U32x16 LoadWords(const void* from) {
  U32x16 x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

TESSERA_INLINE void StoreWords(U32x16 x, void* to) { std::memcpy(to, &x, sizeof(x)); }

// Lane i: the i-th element of one row and that of the next.
TESSERA_INLINE U32x16 Interleave(const BFloat16* row, const BFloat16* next) {
  U16x16 low, high;
  std::memcpy(&low, row, sizeof(low));
  std::memcpy(&high, next, sizeof(high));
  return __builtin_convertvector(low, U32x16) | __builtin_convertvector(high, U32x16) << 16;
}

#define TESSERA_LOW(lane, step) ((lane) & (step) ? 16 + (lane) - (step) : (lane))
#define TESSERA_HIGH(lane, step) ((lane) & (step) ? 16 + (lane) : (lane) + (step))
#define TESSERA_LANES(pick, step)                                                                 \
  pick(0, step), pick(1, step), pick(2, step), pick(3, step), pick(4, step), pick(5, step),       \
      pick(6, step), pick(7, step), pick(8, step), pick(9, step), pick(10, step), pick(11, step), \
      pick(12, step), pick(13, step), pick(14, step), pick(15, step)

// Exchanges the blocks of kStep x kStep off the diagonal of every block of twice that size.
template <int kStep>
TESSERA_INLINE void ExchangeBlocks(U32x16 (&rows)[16]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < 16; ++i) {
    if ((i & kStep) != 0) continue;
    const U32x16 low = rows[i], high = rows[i + kStep];
    rows[i] = __builtin_shufflevector(low, high, TESSERA_LANES(TESSERA_LOW, kStep));
    rows[i + kStep] = __builtin_shufflevector(low, high, TESSERA_LANES(TESSERA_HIGH, kStep));
  }
}

#undef TESSERA_LANES
#undef TESSERA_HIGH
#undef TESSERA_LOW

TESSERA_INLINE void Transpose(U32x16 (&rows)[16]) {
  ExchangeBlocks<8>(rows);
  ExchangeBlocks<4>(rows);
  ExchangeBlocks<2>(rows);
  ExchangeBlocks<1>(rows);
}

}  // namespace

void PackColumns(const BFloat16* b, int64_t leading, bool transposed, int64_t depth,
                 BFloat16* packed) {
  for (int64_t k = 0; k < depth; k += kPackRows, packed += kPackRows * kPackColumns) {
    for (int64_t column = 0; column < kPackColumns; column += 16) {
      U32x16 pairs[kPairs];
      if (transposed) {
        for (int i = 0; i < 16; ++i) {
          const BFloat16* from = b + (column + i) * leading + k;
          __builtin_prefetch(from + kAhead * kPackRows);
          pairs[i] = LoadWords(from);
        }
        Transpose(pairs);
      } else {
        for (int i = 0; i < kPairs; ++i) {
          const BFloat16* row = b + (k + 2 * i) * leading + column;
          if (column % 32 == 0) {
            __builtin_prefetch(row + kAhead * kPackRows * leading);
            __builtin_prefetch(row + (kAhead * kPackRows + 1) * leading);
          }
          pairs[i] = Interleave(row, row + leading);
        }
      }
      for (int i = 0; i < kPairs; ++i) {
        StoreWords(pairs[i], packed + (i * kPackColumns + column) * 2);
      }
    }
  }
}

void TransposeRows(const BFloat16* from, int64_t leading, int64_t rows, int64_t depth,
                   BFloat16* to) {
  for (int64_t k = 0; k < depth; k += kPackRows) {
    for (int64_t row = 0; row < rows; row += 16) {
      U32x16 pairs[kPairs];
      for (int i = 0; i < kPairs; ++i) {
        const BFloat16* source = from + (k + 2 * i) * leading + row;
        pairs[i] = Interleave(source, source + leading);
      }
      Transpose(pairs);
      for (int i = 0; i < 16; ++i) StoreWords(pairs[i], to + (row + i) * depth + k);
    }
  }
}

}  // namespace tessera
