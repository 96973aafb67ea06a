#ifndef TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_

// Sums over the rows of a matrix, by column: the gradients of weights and biases. Runs of rows are
// summed first, by whichever kernel reads the rows, then the runs, both in a fixed order.

#include <cstdint>

#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

inline constexpr int kColumnThreads = 128;

// The division of rows into runs: a function of their number.
class RowRuns {
 public:
  explicit RowRuns(int64_t rows) : rows_(rows) {
    // At least 16, so that partial sums are few compared with rows; at most 1024 runs, which fill a
    // device.
    per_run_ = simt::BlocksOf(rows, 1024);
    if (per_run_ < 16) per_run_ = 16;
  }

  TESSERA_HOST_DEVICE int64_t runs() const { return simt::BlocksOf(rows_, per_run_); }
  TESSERA_HOST_DEVICE int64_t Begin(int64_t run) const { return run * per_run_; }
  TESSERA_HOST_DEVICE int64_t End(int64_t run) const {
    const int64_t end = (run + 1) * per_run_;
    return end < rows_ ? end : rows_;
  }
  // The size of the partial sums of all runs in so many columns.
  int64_t PartialBytes(int64_t columns) const {
    return runs() * columns * static_cast<int64_t>(sizeof(float));
  }

 private:
  int64_t rows_;
  int64_t per_run_;
};

template <int kQuantities>
struct SumOutputs {
  float* sums[kQuantities];
};

inline constexpr int kAddWarps = 16;
inline constexpr int kAddThreads = kAddWarps * simt::kWarpSize;

// outputs[quantity][column] = the sum of partials[run, quantity, column] over the runs (+ itself
// when accumulate). Each warp adds every 16th run, in order; then the warps are added, in order.
template <int kQuantities>
TESSERA_KERNEL void AddRuns(const float* partials, int64_t runs, int64_t columns, bool accumulate,
                            SumOutputs<kQuantities> outputs) {
  const int64_t column = simt::BlockX() * simt::kWarpSize + simt::Lane();
  const int64_t quantity = simt::BlockY();
  float total = 0;
  if (column < columns) {
    for (int64_t run = simt::WarpIndex(); run < runs; run += kAddWarps) {
      total += partials[(run * kQuantities + quantity) * columns + column];
    }
  }
  simt::SharedMemory memory;
  const simt::SharedArray<float> totals = memory.Take<float>(kAddThreads);
  totals.Set(simt::ThreadIndex(), total);
  simt::SyncThreads();
  if (simt::WarpIndex() != 0 || column >= columns) return;
  for (int i = simt::Lane() + simt::kWarpSize; i < kAddThreads; i += simt::kWarpSize) {
    total += totals.Get(i);
  }
  float* const out = (quantity == 0 ? outputs.sums[0] : outputs.sums[kQuantities - 1]) + column;
  *out = accumulate ? *out + total : total;
}

template <int kQuantities>
void LaunchAddRuns(simt::Stream stream, const float* partials, const RowRuns& runs, int64_t columns,
                   bool accumulate, const SumOutputs<kQuantities>& outputs) {
  static_assert(kQuantities <= 2);
  simt::Launch<AddRuns<kQuantities>>({simt::BlocksOf(columns, simt::kWarpSize), kQuantities},
                                     kAddThreads, kAddThreads * sizeof(float), stream, partials,
                                     runs.runs(), columns, accumulate, outputs);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_COLUMN_SUMS_H_
