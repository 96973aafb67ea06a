#ifndef TESSERA_TRAINER_KERNELS_CPU_NORM_H_
#define TESSERA_TRAINER_KERNELS_CPU_NORM_H_

// What LayerNorm and RMSNorm share.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/thread_pool.h"
#include "trainer/kernels/cpu/vector.h"

namespace tessera {

inline constexpr int64_t kNormForwardRows = 16;

// 1 in the first `count` lanes, 0 in the others.
TESSERA_INLINE F32x16 LanesBelow(int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = 1;
  return Load(lanes);
}

// Sums over rows of some quantities of `columns` values each: one partial sum per block of rows,
// then the blocks in order.
class NormPartials {
 public:
  NormPartials(int64_t rows, int64_t columns, int64_t quantities)
      : rows_(rows), columns_(columns), quantities_(quantities) {}

  // 16 rows or more: the partial sums stay few against the rows.
  int64_t rows_per_block() const { return std::max<int64_t>(16, (rows_ + 63) / 64); }
  int64_t blocks() const { return (rows_ + rows_per_block() - 1) / rows_per_block(); }
  int64_t count() const { return std::max<int64_t>(1, blocks() * quantities_ * columns_); }

  // The zeroed sums of the block whose first row is `begin`: [quantities, columns].
  float* Clear(float* sums, int64_t begin) const {
    float* part = sums + begin / rows_per_block() * quantities_ * columns_;
    std::memset(part, 0, quantities_ * columns_ * sizeof(float));
    return part;
  }

  void Combine(ThreadPool& pool, const float* sums, int64_t quantity, float* out,
               bool accumulate) const {
    ForRanges(pool, columns_, 16 * kStripColumns, [&](int64_t begin, int64_t end, int) {
      ForLanes(end - begin, [&](int64_t i, auto load, auto store) {
        F32x16 total = {};
        for (int64_t block = 0; block < blocks(); ++block) {
          total += load(sums + (block * quantities_ + quantity) * columns_ + begin + i);
        }
        float* sum = out + begin + i;
        store(accumulate ? load(sum) + total : total, sum);
      });
    });
  }

 private:
  int64_t rows_;
  int64_t columns_;
  int64_t quantities_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_NORM_H_
