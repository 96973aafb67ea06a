#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ROW_KERNELS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ROW_KERNELS_H_

// Parts of kernels over whole rows: norms, losses, sums over rows.

#include <glog/logging.h>

#include <bit>
#include <cstdint>

#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

inline constexpr int kWarpRowThreads = 128;
inline constexpr int kWarpRowsPerBlock = kWarpRowThreads / simt::kWarpSize;

inline simt::Grid WarpRowGrid(int64_t rows) { return {simt::BlocksOf(rows, kWarpRowsPerBlock)}; }

// Returns the row of the calling thread's warp; the last block may have warps beyond the last row.
TESSERA_DEVICE int64_t WarpRow() { return simt::BlockX() * kWarpRowsPerBlock + simt::WarpIndex(); }

// Loads a run, with zeros for columns beyond the row. Whether it is loaded as a pack changes no
// result: lanes have the same columns.
template <bool kPacks, int kCount, typename T>
TESSERA_DEVICE void LoadRun(const T* from, int64_t left, float (&to)[kCount]) {
  if constexpr (kPacks) {
    simt::LoadPack(from, to);
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = i < left ? simt::ToFloat(from[i]) : 0.0f;
  }
}

template <bool kPacks, int kCount, typename T>
TESSERA_DEVICE void StoreRun(const float (&from)[kCount], int64_t left, T* to) {
  if constexpr (kPacks) {
    simt::StorePack(from, to);
  } else {
    for (int i = 0; i < kCount; ++i) {
      if (i < left) to[i] = simt::FromFloat<T>(from[i]);
    }
  }
}

// Loads a run as memory has it, so that many of them are on their way at once; zeros for columns
// beyond the row.
template <bool kPacks, typename T>
TESSERA_DEVICE simt::Stored<T, kPackOf<T>> LoadStoredRun(const T* from, int64_t left) {
  simt::Stored<T, kPackOf<T>> run = {};
  if constexpr (kPacks) {
    if (left > 0) run = simt::LoadStored<kPackOf<T>>(from);
  } else {
    simt::Pack<T, kPackOf<T>> elements = {};
#pragma unroll
    for (int i = 0; i < kPackOf<T>; ++i) {
      if (i < left) elements.elements[i] = from[i];
    }
    run = std::bit_cast<simt::Stored<T, kPackOf<T>>>(elements);
  }
  return run;
}

// The rows that a norm reads: the rows of x, or, with kAdds, of x = a + b, which the first pass
// over a row writes.
template <bool kAdds, typename T>
struct NormInput {
  Rows<T> x, a, b;

  struct Run {
    simt::Stored<T, kPackOf<T>> x_or_a, b;
  };

  // Begins to load the run that starts at `column`, in the first pass.
  template <bool kPacks>
  TESSERA_DEVICE Run Load(int64_t row, int64_t column) const {
    const int64_t left = x.columns - column;
    if constexpr (kAdds) {
      return {LoadStoredRun<kPacks>(a.At(row, column), left),
              LoadStoredRun<kPacks>(b.At(row, column), left)};
    } else {
      return {LoadStoredRun<kPacks>(x.At(row, column), left), {}};
    }
  }

  // Returns what was loaded. Later passes load what the same lane stores here.
  template <bool kPacks>
  TESSERA_DEVICE void Finish(const Run& run, int64_t row, int64_t column,
                             float (&to)[kPackOf<T>]) const {
    simt::Unpack<T>(run.x_or_a, to);
    if constexpr (kAdds) {
      const int64_t left = x.columns - column;
      float addends[kPackOf<T>];
      simt::Unpack<T>(run.b, addends);
      for (int i = 0; i < kPackOf<T>; ++i) {
        to[i] = simt::ToFloat(simt::FromFloat<T>(to[i] + addends[i]));
      }
      if (left > 0) StoreRun<kPacks>(to, left, x.At(row, column));
    }
  }
};

template <typename T>
NormInput<false, T> NormInputOf(const TensorView& x) {
  return {AsRows<T>(x), {}, {}};
}

template <typename T>
NormInput<true, T> NormInputOf(const TensorView& a, const TensorView& b, const TensorView& sum) {
  return {AsRows<T>(sum), AsRows<T>(a), AsRows<T>(b)};
}

template <bool kAdds, typename T>
bool AllowsPacks(const NormInput<kAdds, T>& input) {
  constexpr int kPack = kPackOf<T>;
  return AllowsPacks<kPack>(input.x) && (!kAdds || AllowsPacks<kPack>(input.a, input.b));
}

// The most leaves of CombineInTree(), whose partial results are on the stack of a thread.
inline constexpr int kMaxTreeLevels = 32;

inline void CheckTreeLeaves(int64_t count) {
  CHECK(count >= 1 && count < int64_t{1} << (kMaxTreeLevels - 1)) << count;
}

// Combines leaf(0), ..., leaf(count - 1) in a binary tree, whose cuts are at powers of two: leaf i
// is combined with one result per trailing one bit of i, and the last one with all that are left.
template <typename T, typename Leaf, typename Combine>
TESSERA_DEVICE T CombineInTree(int64_t count, const Leaf& leaf, const Combine& combine) {
  T levels[kMaxTreeLevels];
  int occupied = 0;
  T total = {};
  for (int64_t i = 0; i < count; ++i) {
    total = leaf(i);
    const bool last = i + 1 == count;
    for (int64_t bits = i; occupied > 0 && (last || bits % 2 == 1); bits /= 2) {
      total = combine(levels[--occupied], total);
    }
    levels[occupied++] = total;
  }
  return total;
}

// Sums over the rows of a matrix, by column: the gradients of weights and biases. Runs of rows are
// summed first, by whichever kernel reads the rows, then the runs, both in a fixed order.

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
  // Returns the number of partial sums of all runs in that many columns.
  int64_t Partials(int64_t columns) const { return runs() * columns; }

 private:
  int64_t rows_;
  int64_t per_run_;
};

// Rows of a matrix as SumRuns() loads them, each element once.
template <typename T>
struct LoadedRows {
  Rows<T> x;

  template <int kCount>
  TESSERA_DEVICE void Load(int64_t row, int64_t column, float (&values)[kCount]) const {
    simt::LoadPack(x.At(row, column), values);
  }
};

// Sums each run of rows, with one thread for kCount columns.
template <int kCount, typename Source>
TESSERA_KERNEL void SumRuns(Source source, int64_t columns, RowRuns runs, float* partials) {
  const int64_t column = (simt::BlockX() * kColumnThreads + simt::ThreadIndex()) * kCount;
  if (column >= columns) return;
  const int64_t run = simt::BlockY(), end = runs.End(run);
  float sums[kCount] = {}, values[kCount];
  for (int64_t row = runs.Begin(run); row < end; ++row) {
    source.Load(row, column, values);
    for (int i = 0; i < kCount; ++i) sums[i] += values[i];
  }
  simt::StorePack(sums, partials + run * columns + column);
}

template <int kQuantities>
struct SumOutputs {
  float* sums[kQuantities];
};

inline constexpr int kAddWarps = 16;
inline constexpr int kAddThreads = kAddWarps * simt::kWarpSize;

// Sets outputs[quantity][column] to the sum of partials[run, quantity, column] over the runs (+
// itself when accumulate). Each warp adds every 16th run, in order; then the warps are added, in
// order.
template <int kQuantities>
TESSERA_KERNEL void AddRuns(const float* partials, int64_t runs, int64_t columns, bool accumulate,
                            SumOutputs<kQuantities> outputs) {
  const int64_t column = simt::BlockX() * simt::kWarpSize + simt::Lane();
  const int64_t quantity = simt::BlockY();
  float total = 0;
  if (column < columns) {
#pragma unroll 16  // loads that do not wait for each other
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

// Sets sums[column] to the sum of a source's rows (+ itself when accumulate). kPack: the columns
// that a thread may load at once, which change no bit. `partials` has the size of
// RowRuns::Partials().
template <int kPack, typename Source>
void LaunchSumRows(simt::Stream stream, const Source& source, int64_t rows, int64_t columns,
                   float* partials, bool accumulate, float* sums) {
  const RowRuns runs(rows);
  simt::Launch<SumRuns<kPack, Source>>(
      {simt::BlocksOf(columns / kPack, kColumnThreads), runs.runs()}, kColumnThreads, 0, stream,
      source, columns, runs, partials);
  LaunchAddRuns<1>(stream, partials, runs, columns, accumulate, {{sums}});
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ROW_KERNELS_H_
