#ifndef TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_

// Sums over the rows of a matrix, by column: the gradients of weights and biases. Runs of rows are
// summed first, each by one thread a column, then the runs, in order.

#include <cstdint>

#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

inline constexpr int kColumnThreads = 128;

// The division of rows into runs: a function of their number.
class RowRuns {
 public:
  explicit RowRuns(int64_t rows) : rows_(rows) {}

  // At least 16, so that partial sums are few compared with rows; at most 256 runs.
  TESSERA_HOST_DEVICE int64_t rows_per_run() const {
    const int64_t rows = (rows_ + 255) / 256;
    return rows < 16 ? 16 : rows;
  }
  TESSERA_HOST_DEVICE int64_t runs() const { return simt::BlocksOf(rows_, rows_per_run()); }
  TESSERA_HOST_DEVICE int64_t rows() const { return rows_; }

 private:
  int64_t rows_;
};

template <int kQuantities>
struct SumOutputs {
  float* sums[kQuantities];
};

// partials[run, quantity, column]. Body: Add(row, column, sums) adds the terms of one element.
template <int kQuantities, typename Body>
TESSERA_KERNEL void SumRuns(Body body, RowRuns runs, int64_t columns, float* partials) {
  const int64_t column = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (column >= columns) return;
  const int64_t run = simt::BlockY();
  const int64_t begin = run * runs.rows_per_run();
  const int64_t behind = begin + runs.rows_per_run();
  const int64_t end = behind < runs.rows() ? behind : runs.rows();
  float sums[kQuantities] = {};
  for (int64_t row = begin; row < end; ++row) body.Add(row, column, sums);
  for (int q = 0; q < kQuantities; ++q) {
    partials[(run * kQuantities + q) * columns + column] = sums[q];
  }
}

// outputs[quantity][column] = the sum of the runs (+ itself when accumulate).
template <int kQuantities>
TESSERA_KERNEL void AddRuns(const float* partials, int64_t runs, int64_t columns, bool accumulate,
                            SumOutputs<kQuantities> outputs) {
  const int64_t column = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (column >= columns) return;
  const int q = static_cast<int>(simt::BlockY());
  float total = 0;
  for (int64_t run = 0; run < runs; ++run) {
    total += partials[(run * kQuantities + q) * columns + column];
  }
  float* const out = outputs.sums[q] + column;
  *out = accumulate ? *out + total : total;
}

template <int kQuantities>
int64_t ColumnSumsScratchBytes(int64_t rows, int64_t columns) {
  return RowRuns(rows).runs() * kQuantities * columns * static_cast<int64_t>(sizeof(float));
}

// `partials`: scratch memory of ColumnSumsScratchBytes().
template <int kQuantities, typename Body>
void LaunchColumnSums(simt::Stream stream, Body body, int64_t rows, int64_t columns,
                      bool accumulate, void* partials, const SumOutputs<kQuantities>& outputs) {
  const RowRuns runs(rows);
  const int64_t blocks = simt::BlocksOf(columns, kColumnThreads);
  float* const sums = static_cast<float*>(partials);
  simt::Launch<SumRuns<kQuantities, Body>>({blocks, runs.runs()}, kColumnThreads, 0, stream, body,
                                           runs, columns, sums);
  simt::Launch<AddRuns<kQuantities>>({blocks, kQuantities}, kColumnThreads, 0, stream,
                                     static_cast<const float*>(sums), runs.runs(), columns,
                                     accumulate, outputs);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_
