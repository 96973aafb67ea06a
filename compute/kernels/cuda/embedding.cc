

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Embedding tables, forward and backward. V ids of this shard, R rows, C columns.
//
// The gradient of a table row adds the rows of its id one after the other, in their order, as on
// the CPU: bitwise the same. Rows are first sorted by id:
// 1. count the rows of each id, with integer atomics, whose order does not matter;
// 2. sum up the counts: where each id's list of rows begins;
// 3. put each row into its id's list, in any order;
// 4. sort each list: a row's place is the number of smaller rows in the list; the list of an id
//    that is repeated often is made anew instead, by a pass over all rows;
// 5. one block a table row and strip of columns adds the rows of the list.
namespace {

// Adjacent ids, or rows, of a thread between two barriers, and rows of a list that a thread loads
// at once: their loads do not wait for each other.
constexpr int kScanIds = 8, kSortRows = 16, kAddedAtOnce = 8;
constexpr int kScanThreads = 1024;
constexpr int kSortThreads = 64;
constexpr int64_t kStripWarps = 4;
constexpr int kMostUnitLevels = 32;

template <typename T>
struct EmbeddingForwardBody {
  Rows<T> table;
  const int32_t* ids;
  int64_t first_id;
  Rows<T> out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const int64_t local = ids[row] - first_id;
    float values[kCount] = {};
    if (local >= 0 && local < table.rows) simt::LoadPack(table.At(local, column), values);
    simt::StorePack(values, out.At(row, column));
  }
};

// The rows of this shard's ids, by id. `starts` has V + 1 elements.
struct RowLists {
  const int32_t* ids;
  int64_t rows, first_id, id_count;
  int32_t* counts;
  int32_t* starts;
  int32_t* unsorted;
  int32_t* sorted;

  // Returns a negative id for a row of another shard.
  TESSERA_DEVICE int64_t LocalId(int64_t row) const {
    const int64_t local = ids[row] - first_id;
    return local < id_count ? local : -1;
  }
};

// Counts the rows of each id, or, with kPlaces, places them into its list while counting again.
template <bool kPlaces>
struct CountBody {
  RowLists lists;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t row) const {
    const int64_t id = lists.LocalId(row);
    if (id < 0) return;
    const int32_t before = simt::AtomicAdd(lists.counts + id, 1);
    if (kPlaces) lists.unsorted[lists.starts[id] + before] = static_cast<int32_t>(row);
  }
};

// Returns `before`, which is the same for all threads of the block, plus the values of the threads
// before this one; adds the values of all threads to it.
TESSERA_DEVICE int32_t SumBefore(const simt::SharedArray<int32_t>& warp_sums, int32_t value,
                                 int32_t* before) {
  int32_t sum = value;  // of this lane and those before it
  for (int distance = 1; distance < simt::kWarpSize; distance *= 2) {
    const int source = simt::Lane() - distance;
    const int32_t other = simt::ShuffleFrom(simt::kAllLanes, sum, source < 0 ? 0 : source);
    if (source >= 0) sum += other;
  }
  if (simt::Lane() == simt::kWarpSize - 1) warp_sums.Set(simt::WarpIndex(), sum);
  simt::SyncThreads();
  int32_t start = *before + sum - value;
  for (int warp = 0; warp < simt::ThreadCount() / simt::kWarpSize; ++warp) {
    const int32_t warp_sum = warp_sums.Get(warp);
    if (warp < simt::WarpIndex()) start += warp_sum;
    *before += warp_sum;
  }
  simt::SyncThreads();
  return start;
}

// Runs one block. Sets the counts to zero, so that rows can be counted again.
TESSERA_KERNEL void ScanCounts(RowLists lists) {
  simt::SharedMemory memory;
  const simt::SharedArray<int32_t> warp_sums = memory.Take<int32_t>(simt::kWarpSize);
  int32_t before = 0;
  for (int64_t first = 0; first < lists.id_count; first += kScanIds * simt::ThreadCount()) {
    const int64_t id = first + kScanIds * simt::ThreadIndex();
    const int64_t left = lists.id_count - id;
    int32_t counts[kScanIds] = {}, sum = 0;
#pragma unroll
    for (int i = 0; i < kScanIds; ++i) {
      if (i < left) counts[i] = lists.counts[id + i];
    }
    for (const int32_t count : counts) sum += count;
    int32_t start = SumBefore(warp_sums, sum, &before);
#pragma unroll
    for (int i = 0; i < kScanIds; ++i) {
      if (i >= left) break;
      lists.starts[id + i] = start;
      lists.counts[id + i] = 0;
      start += counts[i];
    }
  }
  if (simt::ThreadIndex() == 0) lists.starts[lists.id_count] = before;
}

// Runs one block per list. Comparing all pairs takes n * n steps, a pass over all rows R: so no
// list takes more than R, and few take as many.
TESSERA_KERNEL void SortLists(RowLists lists) {
  const int64_t id = simt::BlockX();
  const int32_t begin = lists.starts[id], end = lists.starts[id + 1];
  if (int64_t{end - begin} * (end - begin) > lists.rows) {
    simt::SharedMemory memory;
    const simt::SharedArray<int32_t> warp_sums = memory.Take<int32_t>(simt::kWarpSize);
    int32_t next = begin;
    for (int64_t first = 0; first < lists.rows; first += kSortRows * simt::ThreadCount()) {
      const int64_t row = first + kSortRows * simt::ThreadIndex();
      bool listed[kSortRows];
      int32_t count = 0;
#pragma unroll
      for (int i = 0; i < kSortRows; ++i) {
        listed[i] = row + i < lists.rows && lists.LocalId(row + i) == id;
      }
      for (const bool is_listed : listed) count += is_listed ? 1 : 0;
      int32_t place = SumBefore(warp_sums, count, &next);
#pragma unroll
      for (int i = 0; i < kSortRows; ++i) {
        if (listed[i]) lists.sorted[place++] = static_cast<int32_t>(row + i);
      }
    }
    return;
  }
  for (int32_t i = begin + simt::ThreadIndex(); i < end; i += simt::ThreadCount()) {
    const int32_t row = lists.unsorted[i];
    int32_t smaller = 0;
    for (int32_t j = begin; j < end; ++j) smaller += lists.unsorted[j] < row ? 1 : 0;
    lists.sorted[begin + smaller] = row;
  }
}

// A sum over units (operations.h). A unit may contribute nothing.
class UnitTree {
 public:
  // Units in ascending order.
  TESSERA_DEVICE void Add(int64_t number, float sum) {
    const auto unit = static_cast<int32_t>(number);
    // The lowest node that holds two neighbours is the smaller, the fewer bits they differ in.
    while (depth_ >= 2 &&
           LowerNode(units_[depth_ - 2] ^ units_[depth_ - 1], units_[depth_ - 1] ^ unit)) {
      Merge();
    }
    sums_[depth_] = sum;
    units_[depth_++] = unit;
  }
  TESSERA_DEVICE float Finish() {
    while (depth_ >= 2) Merge();
    return depth_ == 0 ? 0.0f : sums_[0];
  }

 private:
  TESSERA_DEVICE static bool LowerNode(int32_t a, int32_t b) { return a < b && a < (a ^ b); }
  TESSERA_DEVICE void Merge() {
    --depth_;
    sums_[depth_ - 1] += sums_[depth_];
  }

  float sums_[kMostUnitLevels];
  int32_t units_[kMostUnitLevels];
  int depth_ = 0;
};

// Runs a block per id and strip of columns, with one thread for kCount columns.
template <bool kInUnits, int kCount, typename T>
TESSERA_KERNEL void AddLists(RowLists lists, Rows<T> d_out, int64_t rows_per_unit,
                             Rows<float> d_table) {
  static_assert(kCount == 1 || !kInUnits);
  const int64_t id = simt::BlockX();
  const int64_t column = (simt::BlockY() * simt::ThreadCount() + simt::ThreadIndex()) * kCount;
  const int32_t begin = lists.starts[id], end = lists.starts[id + 1];
  if (begin == end || column >= d_table.columns) return;
  float* const to = d_table.At(id, column);
  float sums[kCount] = {};
  if constexpr (!kInUnits) simt::LoadPack(to, sums);
  UnitTree tree;
  [[maybe_unused]] int64_t unit = kInUnits ? lists.sorted[begin] / rows_per_unit : 0;
  for (int32_t first = begin; first < end; first += kAddedAtOnce) {
    int32_t rows[kAddedAtOnce] = {};
    simt::Stored<T, kCount> loaded[kAddedAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAddedAtOnce; ++i) {
      if (i < end - first) rows[i] = lists.sorted[first + i];
    }
#pragma unroll
    for (int i = 0; i < kAddedAtOnce; ++i) {
      if (i < end - first) loaded[i] = simt::LoadStored<kCount>(d_out.At(rows[i], column));
    }
#pragma unroll
    for (int i = 0; i < kAddedAtOnce; ++i) {
      if (i >= end - first) break;
      if constexpr (kInUnits) {
        const int64_t own_unit = rows[i] / rows_per_unit;
        if (own_unit != unit) {
          tree.Add(unit, sums[0]);
          unit = own_unit;
          sums[0] = 0;
        }
      }
      float values[kCount];
      simt::Unpack<T>(loaded[i], values);
      for (int j = 0; j < kCount; ++j) sums[j] += values[j];
    }
  }
  if constexpr (kInUnits) {
    tree.Add(unit, sums[0]);
    sums[0] = *to + tree.Finish();
  }
  simt::StorePack(sums, to);
}

template <bool kInUnits, int kCount, typename T>
void LaunchAddLists(simt::Stream stream, const RowLists& lists, const Rows<T>& d_out,
                    int64_t rows_per_unit, const Rows<float>& d_table) {
  const int64_t warps = simt::BlocksOf(d_table.columns, int64_t{kCount} * simt::kWarpSize);
  const int threads = static_cast<int>(std::min(warps, kStripWarps)) * simt::kWarpSize;
  simt::Launch<AddLists<kInUnits, kCount, T>>(
      {d_table.rows, simt::BlocksOf(d_table.columns, int64_t{kCount} * threads)}, threads, 0,
      stream, lists, d_out, rows_per_unit, d_table);
}

template <typename T>
struct AddPositionsBody {
  Rows<T> table;
  simt::Divisor sequence;
  Rows<T> x;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    T* const at = x.At(row, column);
    float values[kCount], positions[kCount];
    simt::LoadPack(at, values);
    simt::LoadPack(table.At(sequence.Remainder(static_cast<uint32_t>(row)), column), positions);
    for (int i = 0; i < kCount; ++i) values[i] += positions[i];
    simt::StorePack(values, at);
  }
};

template <bool kInUnits, typename T>
struct AddPositionsBackwardBody {
  Rows<T> d_x;
  int64_t sequence, rows_per_unit;
  Rows<float> d_table;
  bool accumulate;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t t, int64_t column) const {
    float totals[kCount] = {}, values[kCount] = {};
    UnitTree tree;
    int64_t unit = 0;
    // Positions beyond the sequence have no gradient.
    for (int64_t row = t; t < sequence && row < d_x.rows; row += sequence) {
      simt::LoadPack(d_x.At(row, column), values);
      for (int i = 0; i < kCount; ++i) totals[i] += values[i];
      if constexpr (kInUnits) {
        if (row + sequence < (unit + 1) * rows_per_unit) continue;
        tree.Add(unit++, totals[0]);
        totals[0] = 0;
      }
    }
    if constexpr (kInUnits) totals[0] = tree.Finish();
    float* const to = d_table.At(t, column);
    if (accumulate) {
      simt::LoadPack(to, values);
      for (int i = 0; i < kCount; ++i) totals[i] = values[i] + totals[i];
    }
    simt::StorePack(totals, to);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::EmbeddingForward& op) {
  const Operation here(*this, "EmbeddingForward", op.table, op.ids, op.out);
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const EmbeddingForwardBody<T> body = {AsRows<T>(op.table), op.ids.as<int32_t>(), op.first_id,
                                          AsRows<T>(op.out)};
    LaunchForEach(stream(), body.out.rows, body.out.columns, body, body.table, body.out);
  });
}

void DeviceKernels::Run(const ops::EmbeddingBackward& op) {
  const Operation here(*this, "EmbeddingBackward", op.d_out, op.ids, op.d_table);
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.d_out);
    const Rows<float> to = AsRows<float>(op.d_table);
    if (from.rows == 0 || to.rows == 0) return;
    int32_t* const memory = Scratch<int32_t>(2 * to.rows + 1 + 2 * from.rows);
    if (memory == nullptr) return;
    const RowLists lists = {.ids = op.ids.as<int32_t>(),
                            .rows = from.rows,
                            .first_id = op.first_id,
                            .id_count = to.rows,
                            .counts = memory,
                            .starts = memory + to.rows,
                            .unsorted = memory + 2 * to.rows + 1,
                            .sorted = memory + 2 * to.rows + 1 + from.rows};
    constexpr int64_t kWarpSums = simt::kWarpSize * sizeof(int32_t);
    Fill({TensorView(lists.counts, DType::kI32, {to.rows}), 0});
    LaunchForEach(stream(), 1, from.rows, CountBody<false>{lists});
    simt::Launch<ScanCounts>({1}, kScanThreads, kWarpSums, stream(), lists);
    LaunchForEach(stream(), 1, from.rows, CountBody<true>{lists});
    simt::Launch<SortLists>({to.rows}, kSortThreads, kWarpSums, stream(), lists);
    const int64_t rows_per_unit = from.rows / op.units;
    if (op.units > 1) return LaunchAddLists<true, 1>(stream(), lists, from, rows_per_unit, to);
    WithBool(AllowsPacks<kPackOf<T>>(from, to), [&]<bool kPacks>(std::bool_constant<kPacks>) {
      LaunchAddLists<false, kPacks ? kPackOf<T> : 1>(stream(), lists, from, rows_per_unit, to);
    });
  });
}

void DeviceKernels::Run(const ops::AddPositions& op) {
  const Operation here(*this, "AddPositions", op.table, op.x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> x = AsRows<T>(op.x);
    const AddPositionsBody<T> body = {AsRows<T>(op.table), simt::Divisor(op.sequence), x};
    LaunchForEach(stream(), x.rows, x.columns, body, body.table, x);
  });
}

void DeviceKernels::Run(const ops::AddPositionsBackward& op) {
  const Operation here(*this, "AddPositionsBackward", op.d_x, op.d_table);
  WithType(op.d_x.dtype(), [&]<typename T>(T) {
    const Rows<T> x = AsRows<T>(op.d_x);
    const Rows<float> to = AsRows<float>(op.d_table);
    const int64_t rows_per_unit = x.rows / op.units;
    if (op.units == 1) {
      const AddPositionsBackwardBody<false, T> body = {x, op.sequence, 0, to, op.accumulate};
      LaunchForEach(stream(), to.rows, to.columns, body, x, to);
    } else {
      const AddPositionsBackwardBody<true, T> body = {x, op.sequence, rows_per_unit, to,
                                                      op.accumulate};
      LaunchForEach(stream(), to.rows, to.columns, body);
    }
  });
}

// Rotary positions: the pair (x1, x2) = (x[i], x[i + D/2]) is rotated by the angle of (t, i).
namespace {

// Rows are (batch, position, head), columns the first half of a head.
template <typename T>
struct RopeBody {
  Rows<float> cos, sin;
  float sign;
  T* x;
  simt::Divisor heads, sequence;
  int64_t half, batch_stride, sequence_stride, head_stride;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const uint32_t index = static_cast<uint32_t>(row), token = heads.Quotient(index);
    const int64_t head = heads.Remainder(index);
    const int64_t batch = sequence.Quotient(token), t = sequence.Remainder(token);
    T* const low = x + batch * batch_stride + t * sequence_stride + head * head_stride + column;
    float x1[kCount], x2[kCount], c[kCount], s[kCount];
    simt::LoadPack(low, x1);
    simt::LoadPack(low + half, x2);
    simt::LoadPack(cos.At(t, column), c);
    simt::LoadPack(sin.At(t, column), s);
    for (int i = 0; i < kCount; ++i) {
      const float sine = sign * s[i], first = x1[i];
      x1[i] = fmaf(first, c[i], -(x2[i] * sine));
      x2[i] = fmaf(x2[i], c[i], first * sine);
    }
    simt::StorePack(x1, low);
    simt::StorePack(x2, low + half);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::Rope& op) {
  const Operation here(*this, "Rope", op.cos, op.sin, op.x);
  const int64_t sequence = op.x.dim(1), heads = op.x.dim(2), half = op.x.dim(3) / 2;
  const int64_t rows = op.x.dim(0) * sequence * heads;
  const Rows<float> cosines = AsRows<float>(op.cos), sines = AsRows<float>(op.sin);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const RopeBody<T> body = {cosines,
                              sines,
                              op.inverse ? -1.0f : 1.0f,
                              op.x.as<T>(),
                              simt::Divisor(heads),
                              simt::Divisor(sequence),
                              half,
                              op.x.stride(0),
                              op.x.stride(1),
                              op.x.stride(2)};
    const auto by = [&](int d) { return Rows<T>{body.x, 1, half, op.x.stride(d)}; };
    LaunchForEach(stream(), rows, half, body, cosines, sines, by(0), by(1), by(2));
  });
}

}  // namespace tessera::cuda
