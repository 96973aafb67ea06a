#ifndef TESSERA_COMPUTE_KERNELS_CPU_LOOPS_H_
#define TESSERA_COMPUTE_KERNELS_CPU_LOOPS_H_

// Views of operands, and the division of work into blocks, for the operations of this folder.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {

// Calls body(T{}) with the C++ type of a compute dtype.
template <typename Body>
void WithType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BFloat16{});
    default:
      LOG(FATAL) << "the CPU backend computes in float32 and bfloat16, not " << DTypeName(dtype);
  }
}

// A matrix [rows, columns], dense in its columns.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  T* row(int64_t r) const { return data + r * stride; }
};

// Treats all dims but the last as rows: a strided matrix, or a contiguous tensor of any rank.
template <typename T>
Rows<T> AsRows(const TensorView& x) {
  CHECK_GE(x.rank(), 1);
  const int64_t columns = x.dim(x.rank() - 1);
  if (x.rank() == 2) {
    CHECK(columns <= 1 || x.stride(1) == 1)
        << "not dense in the last dim: " << ShapeToString(x.shape());
    return {x.as<T>(), x.dim(0), columns, x.stride(0)};
  }
  CHECK(x.contiguous()) << ShapeToString(x.shape());
  return {x.as<T>(), columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

// Elements per block of an elementwise loop: some microseconds of work, some tens of KiB.
inline constexpr int64_t kBlockElements = 16384;

// Calls body(row, begin, end, thread): covers every element of a [rows, columns] matrix once, in
// parts of rows.
template <typename Body>
void ForSegments(ThreadPool& pool, int64_t rows, int64_t columns, Body body) {
  if (rows <= 0 || columns <= 0) return;
  if (columns >= kBlockElements) {
    const int64_t pieces = CeilDivide(columns, kBlockElements);
    pool.ParallelFor(rows * pieces, [&](int64_t block, int thread) {
      const int64_t begin = block % pieces * kBlockElements;
      body(block / pieces, begin, std::min(columns, begin + kBlockElements), thread);
    });
    return;
  }
  const int64_t rows_per_block = kBlockElements / columns;
  pool.ParallelFor(CeilDivide(rows, rows_per_block), [&](int64_t block, int thread) {
    const int64_t last = std::min(rows, (block + 1) * rows_per_block);
    for (int64_t row = block * rows_per_block; row < last; ++row) body(row, 0, columns, thread);
  });
}

// Calls body(begin, end, thread) over [0, count) in blocks of `size`.
template <typename Body>
void ForRanges(ThreadPool& pool, int64_t count, int64_t size, Body body) {
  pool.ParallelFor(CeilDivide(count, size), [&](int64_t block, int thread) {
    body(block * size, std::min(count, (block + 1) * size), thread);
  });
}

// Columns that one thread sums over all rows: a few cache lines per row.
inline constexpr int64_t kStripColumns = 64;

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_LOOPS_H_
