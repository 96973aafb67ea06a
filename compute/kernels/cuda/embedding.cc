
#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

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

constexpr int kScanThreads = 1024;
constexpr int kSortThreads = 64;
constexpr int kStripThreads = 128;
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
    if (local >= 0 && local < table.rows) {
      simt::LoadPack(table.data + local * table.stride + column, values);
    }
    simt::StorePack(values, out.data + row * out.stride + column);
  }
};

struct ZeroBody {
  int32_t* x;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t i) const {
    x[i] = 0;
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

  // Negative: another shard's.
  TESSERA_DEVICE int64_t LocalId(int64_t row) const {
    const int64_t local = ids[row] - first_id;
    return local < id_count ? local : -1;
  }
};

struct CountBody {
  RowLists lists;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t row) const {
    const int64_t id = lists.LocalId(row);
    if (id >= 0) simt::AtomicAdd(lists.counts + id, 1);
  }
};

// `before`, the same for all threads of the block, plus the values of the threads before this one;
// adds those of all threads to it.
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

// One block. Leaves zeros in the counts, which PlaceBody counts up again.
TESSERA_KERNEL void ScanCounts(RowLists lists) {
  simt::SharedMemory memory;
  const simt::SharedArray<int32_t> warp_sums = memory.Take<int32_t>(simt::kWarpSize);
  int32_t before = 0;
  for (int64_t first = 0; first < lists.id_count; first += simt::ThreadCount()) {
    const int64_t id = first + simt::ThreadIndex();
    const int32_t count = id < lists.id_count ? lists.counts[id] : 0;
    const int32_t start = SumBefore(warp_sums, count, &before);
    if (id < lists.id_count) {
      lists.starts[id] = start;
      lists.counts[id] = 0;
    }
  }
  if (simt::ThreadIndex() == 0) lists.starts[lists.id_count] = before;
}

struct PlaceBody {
  RowLists lists;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t /*row*/, int64_t row) const {
    const int64_t id = lists.LocalId(row);
    if (id < 0) return;
    const int32_t place = lists.starts[id] + simt::AtomicAdd(lists.counts + id, 1);
    lists.unsorted[place] = static_cast<int32_t>(row);
  }
};

// One block a list. Comparing all pairs takes n * n steps, a pass over all rows R: so no list takes
// more than R, and few take as many.
TESSERA_KERNEL void SortLists(RowLists lists) {
  const int64_t id = simt::BlockX();
  const int32_t begin = lists.starts[id], end = lists.starts[id + 1];
  if (int64_t{end - begin} * (end - begin) > lists.rows) {
    simt::SharedMemory memory;
    const simt::SharedArray<int32_t> warp_sums = memory.Take<int32_t>(simt::kWarpSize);
    int32_t next = begin;
    for (int64_t first = 0; first < lists.rows; first += simt::ThreadCount()) {
      const int64_t row = first + simt::ThreadIndex();
      const bool listed = row < lists.rows && lists.LocalId(row) == id;
      const int32_t place = SumBefore(warp_sums, listed ? 1 : 0, &next);
      if (listed) lists.sorted[place] = static_cast<int32_t>(row);
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

// A sum over units (operations.h), of which some may contribute nothing.
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

template <typename T>
TESSERA_KERNEL void AddListsInUnits(RowLists lists, Rows<T> d_out, int64_t rows_per_unit,
                                    Rows<float> d_table) {
  const int64_t id = simt::BlockX();
  const int64_t column = simt::BlockY() * simt::ThreadCount() + simt::ThreadIndex();
  const int32_t begin = lists.starts[id], end = lists.starts[id + 1];
  if (begin == end || column >= d_table.columns) return;
  UnitTree tree;
  for (int32_t i = begin; i < end;) {
    const int64_t unit = lists.sorted[i] / rows_per_unit;
    float sum = 0;
    for (; i < end && lists.sorted[i] / rows_per_unit == unit; ++i) {
      sum += simt::ToFloat(d_out.data[lists.sorted[i] * d_out.stride + column]);
    }
    tree.Add(unit, sum);
  }
  d_table.data[id * d_table.stride + column] += tree.Finish();
}

template <typename T>
TESSERA_KERNEL void AddLists(RowLists lists, Rows<T> d_out, Rows<float> d_table) {
  const int64_t id = simt::BlockX();
  const int64_t column = simt::BlockY() * simt::ThreadCount() + simt::ThreadIndex();
  const int32_t begin = lists.starts[id], end = lists.starts[id + 1];
  if (begin == end || column >= d_table.columns) return;
  float* const to = d_table.data + id * d_table.stride + column;
  float sum = *to;
  for (int32_t i = begin; i < end; ++i) {
    sum += simt::ToFloat(d_out.data[lists.sorted[i] * d_out.stride + column]);
  }
  *to = sum;
}

template <typename T>
struct AddPositionsBody {
  Rows<T> table;
  simt::Divisor sequence;
  Rows<T> x;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    T* const at = x.data + row * x.stride + column;
    float values[kCount], positions[kCount];
    simt::LoadPack(at, values);
    simt::LoadPack(table.data +
                       int64_t{sequence.Remainder(static_cast<uint32_t>(row))} * table.stride +
                       column,
                   positions);
    for (int i = 0; i < kCount; ++i) values[i] += positions[i];
    simt::StorePack(values, at);
  }
};

template <typename T>
struct AddPositionsBackwardBody {
  Rows<T> d_x;
  int64_t sequence;
  Rows<float> d_table;
  bool accumulate;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t t, int64_t column) const {
    float totals[kCount] = {}, values[kCount] = {};
    // Positions beyond the sequence have no gradient.
    for (int64_t row = t; t < sequence && row < d_x.rows; row += sequence) {
      simt::LoadPack(d_x.data + row * d_x.stride + column, values);
      for (int i = 0; i < kCount; ++i) totals[i] += values[i];
    }
    float* const to = d_table.data + t * d_table.stride + column;
    if (accumulate) {
      simt::LoadPack(to, values);
      for (int i = 0; i < kCount; ++i) totals[i] = values[i] + totals[i];
    }
    simt::StorePack(totals, to);
  }
};

template <typename T>
struct AddPositionsInUnitsBody {
  AddPositionsBackwardBody<T> rows;
  int64_t rows_per_unit;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t t, int64_t column) const {
    UnitTree tree;
    for (int64_t first = 0; t < rows.sequence && first < rows.d_x.rows; first += rows_per_unit) {
      float sum = 0;
      for (int64_t row = first + t; row < first + rows_per_unit; row += rows.sequence) {
        sum += simt::ToFloat(rows.d_x.data[row * rows.d_x.stride + column]);
      }
      tree.Add(first / rows_per_unit, sum);
    }
    const float total = tree.Finish();
    float* const to = rows.d_table.data + t * rows.d_table.stride + column;
    *to = rows.accumulate ? *to + total : total;
  }
};

// Fills all arrays of the lists.
void LaunchLists(simt::Stream stream, const RowLists& lists) {
  LaunchForEach(stream, 1, lists.id_count, ZeroBody{lists.counts});
  LaunchForEach(stream, 1, lists.rows, CountBody{lists});
  simt::Launch<ScanCounts>({1}, kScanThreads, simt::kWarpSize * sizeof(int32_t), stream, lists);
  LaunchForEach(stream, 1, lists.rows, PlaceBody{lists});
  simt::Launch<SortLists>({lists.id_count}, kSortThreads, simt::kWarpSize * sizeof(int32_t), stream,
                          lists);
}

}  // namespace

void DeviceKernels::Run(const ops::EmbeddingForward& op) {
  const Operation here("EmbeddingForward", op.table, op.ids, op.out);
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const EmbeddingForwardBody<T> body = {AsRows<T>(op.table), op.ids.as<int32_t>(), op.first_id,
                                          AsRows<T>(op.out)};
    LaunchForEach(stream(), body.out.rows, body.out.columns, body, body.table, body.out);
  });
}

void DeviceKernels::Run(const ops::EmbeddingBackward& op) {
  const Operation here("EmbeddingBackward", op.d_out, op.ids, op.d_table);
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.d_out);
    const Rows<float> to = AsRows<float>(op.d_table);
    if (from.rows == 0 || to.rows == 0) return;
    const int64_t words = 2 * to.rows + 1 + 2 * from.rows;
    int32_t* const memory = static_cast<int32_t*>(Scratch(words * sizeof(int32_t)));
    if (memory == nullptr) return;
    const RowLists lists = {.ids = op.ids.as<int32_t>(),
                            .rows = from.rows,
                            .first_id = op.first_id,
                            .id_count = to.rows,
                            .counts = memory,
                            .starts = memory + to.rows,
                            .unsorted = memory + 2 * to.rows + 1,
                            .sorted = memory + 2 * to.rows + 1 + from.rows};
    LaunchLists(stream(), lists);
    if (op.units > 1) {
      simt::Launch<AddListsInUnits<T>>({to.rows, simt::BlocksOf(to.columns, kStripThreads)},
                                       kStripThreads, 0, stream(), lists, from,
                                       from.rows / op.units, to);
      return;
    }
    simt::Launch<AddLists<T>>({to.rows, simt::BlocksOf(to.columns, kStripThreads)}, kStripThreads,
                              0, stream(), lists, from, to);
  });
}

void DeviceKernels::Run(const ops::AddPositions& op) {
  const Operation here("AddPositions", op.table, op.x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> x = AsRows<T>(op.x);
    const AddPositionsBody<T> body = {AsRows<T>(op.table), simt::Divisor(op.sequence), x};
    LaunchForEach(stream(), x.rows, x.columns, body, body.table, x);
  });
}

void DeviceKernels::Run(const ops::AddPositionsBackward& op) {
  const Operation here("AddPositionsBackward", op.d_x, op.d_table);
  WithType(op.d_x.dtype(), [&]<typename T>(T) {
    const AddPositionsBackwardBody<T> body = {AsRows<T>(op.d_x), op.sequence,
                                              AsRows<float>(op.d_table), op.accumulate};
    const Rows<float>& to = body.d_table;
    if (op.units == 1) {
      LaunchForEach(stream(), to.rows, to.columns, body, body.d_x, to);
    } else {
      LaunchForEach(stream(), to.rows, to.columns,
                    AddPositionsInUnitsBody<T>{body, body.d_x.rows / op.units});
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
    simt::LoadPack(cos.data + t * cos.stride + column, c);
    simt::LoadPack(sin.data + t * sin.stride + column, s);
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
  const Operation here("Rope", op.cos, op.sin, op.x);
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
