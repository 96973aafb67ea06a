#ifndef TESSERA_COMPUTE_KERNELS_CPU_NORM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_NORM_H_

// Shared by LayerNorm and RMSNorm.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/tensor/tensor.h"

namespace tessera {

inline constexpr int64_t kNormForwardRows = 16;

// sum = a + b, row by row, so that a norm finds the row of the sum in the cache.
template <typename T>
class RowSums {
 public:
  RowSums(const TensorView& a, const TensorView& b, const TensorView& sum)
      : a_(AsRows<T>(a)), b_(AsRows<T>(b)), sum_(AsRows<T>(sum)) {
    CHECK(a.dtype() == sum.dtype() && b.dtype() == sum.dtype());
    CHECK(a.shape() == sum.shape() && b.shape() == sum.shape())
        << ToString(a.shape()) << " + " << ToString(b.shape()) << " = " << ToString(sum.shape());
  }

  int64_t rows() const { return sum_.rows; }
  int64_t columns() const { return sum_.columns; }
  // Adds by AddRange() and returns the row of the sum.
  template <typename AddRange>
  const T* Add(AddRange add_range, int64_t row) const {
    add_range(a_.row(row), b_.row(row), sum_.columns, sum_.row(row));
    return sum_.row(row);
  }

 private:
  Rows<T> a_, b_, sum_;
};

// Sums over rows of several quantities of `columns` values each: one partial sum per block of rows,
// then a sum over the blocks in order.
class NormPartials {
 public:
  NormPartials(int64_t rows, int64_t columns, int64_t quantities)
      : rows_(rows), columns_(columns), quantities_(quantities) {}

  // At least 16 rows, so that there are few partial sums compared with rows.
  int64_t rows_per_block() const { return std::max<int64_t>(16, (rows_ + 63) / 64); }
  int64_t blocks() const { return (rows_ + rows_per_block() - 1) / rows_per_block(); }
  int64_t count() const { return std::max<int64_t>(1, blocks() * quantities_ * columns_); }

  // The zeroed sums of the block whose first row is `begin`: [quantities, columns].
  float* Clear(float* sums, int64_t begin) const {
    float* part = sums + begin / rows_per_block() * quantities_ * columns_;
    std::memset(part, 0, quantities_ * columns_ * sizeof(float));
    return part;
  }

  // out = the sum of one quantity over the blocks (+ out when accumulate).
  void Combine(ThreadPool& pool, const float* sums, int64_t quantity, float* out,
               bool accumulate) const;

 private:
  int64_t rows_;
  int64_t columns_;
  int64_t quantities_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_NORM_H_
