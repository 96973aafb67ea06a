// Embeddings, learned positions and rotary ones.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/embedding.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Adds the columns of each row of d_out, in order, to those of the row that its id names, if this
// shard has that row.
template <typename T>
void AddByIds(const T* d_out, int64_t d_out_stride, int64_t rows, const int32_t* ids,
              int64_t first_id, int64_t id_count, int64_t columns, float* d_table,
              int64_t d_table_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t local = ids[row] - first_id;
    if (local < 0 || local >= id_count) continue;
    float* const sum = d_table + local * d_table_stride;
    AddRange(sum, d_out + row * d_out_stride, columns, sum);
  }
}

// A sum over units (operations.h). Units that contribute nothing are sums of zero, which change no
// other sum.
class UnitTree {
 public:
  // Adds a unit's sum. Call with units in ascending order.
  TESSERA_INLINE void Add(int64_t unit, F32x16 sum) {
    // The lowest node that holds two neighbours is the smaller, the fewer bits they differ in.
    while (depth_ >= 2 &&
           LowerNode(units_[depth_ - 2] ^ units_[depth_ - 1], units_[depth_ - 1] ^ unit)) {
      Merge();
    }
    sums_[depth_] = sum;
    units_[depth_++] = unit;
  }
  // Precondition: at least one unit has been added.
  TESSERA_INLINE F32x16 Finish() {
    while (depth_ >= 2) Merge();
    return sums_[0];
  }

 private:
  static bool LowerNode(int64_t a, int64_t b) { return a < b && a < (a ^ b); }
  TESSERA_INLINE void Merge() {
    --depth_;
    sums_[depth_ - 1] += sums_[depth_];
  }

  static constexpr int kMostLevels = 32;  // of ascending numbers of 32 bits
  F32x16 sums_[kMostLevels];
  int64_t units_[kMostLevels];
  int depth_ = 0;
};

// sum += the `rows` of d_out, `count` of them in ascending order, in units.
template <typename T>
void AddRowsInUnits(const T* d_out, int64_t stride, const int32_t* rows, int64_t count,
                    int64_t rows_per_unit, int64_t columns, float* sum) {
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    UnitTree tree;
    for (int64_t r = 0; r < count;) {
      const int64_t unit = rows[r] / rows_per_unit, end = (unit + 1) * rows_per_unit;
      F32x16 of_unit = {};
      for (; r < count && rows[r] < end; ++r) of_unit += load(d_out + rows[r] * stride + i);
      tree.Add(unit, of_unit);
    }
    store(load(sum + i) + tree.Finish(), sum + i);
  });
}

// sum = the rows of a column strip, `stride` apart, in units (+ sum when accumulate).
template <typename T>
void SumEvery(const T* first, int64_t rows, int64_t units, int64_t stride, int64_t columns,
              bool accumulate, float* sum) {
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    UnitTree tree;
    for (int64_t unit = 0; unit < units; ++unit) {
      F32x16 of_unit = {};
      const int64_t end = (unit + 1) * rows / units;
      for (int64_t row = unit * rows / units; row < end; ++row) {
        of_unit += load(first + row * stride + i);
      }
      tree.Add(unit, of_unit);
    }
    const F32x16 total = tree.Finish();
    store(accumulate ? load(sum + i) + total : total, sum + i);
  });
}

// Rotary positions: the pair (x1, x2) = (x[i], x[i + D/2]) is rotated by the angle of (t, i).

// Rotates the heads of one token, `stride` apart.
template <typename T>
void Rotate(const float* cos, const float* sin, float sign, int64_t half, int64_t heads,
            int64_t stride, T* token) {
  for (int64_t head = 0; head < heads; ++head) {
    T* const low = token + head * stride;
    T* const high = low + half;
    ForLanes(half, [&](int64_t i, auto load, auto store) HWY_ATTR {
      const F32x16 c = load(cos + i);
      const F32x16 s = sign * load(sin + i);
      const F32x16 x1 = load(low + i), x2 = load(high + i);
      store(MulSub(x1, c, x2 * s), low + i);
      store(MulAdd(x2, c, x1 * s), high + i);
    });
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int64_t kRowsPerBlock = 16;

// Rows are sorted by id first.
template <typename T>
void AddInUnits(ThreadPool& pool, const Rows<T>& from, const ops::EmbeddingBackward& op,
                const Rows<float>& to) {
  const int32_t* const ids = op.ids.as<int32_t>();
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < from.rows; ++row) {
    const int64_t local = ids[row] - op.first_id;
    if (0 <= local && local < to.rows) rows.push_back(static_cast<int32_t>(row));
  }
  std::ranges::sort(
      rows, [&](int32_t a, int32_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  std::vector<int64_t> starts;  // of the rows of each id that occurs
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || ids[rows[i]] != ids[rows[i - 1]]) starts.push_back(static_cast<int64_t>(i));
  }
  const auto distinct = static_cast<int64_t>(starts.size());
  starts.push_back(static_cast<int64_t>(rows.size()));
  const auto add_rows = TESSERA_CHOOSE(AddRowsInUnits<T>);
  ForRanges(pool, distinct, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* const first = rows.data() + starts[i];
      add_rows(from.data, from.stride, first, starts[i + 1] - starts[i], from.rows / op.units,
               to.columns, to.row(ids[*first] - op.first_id));
    }
  });
}

}  // namespace

void CpuBackend::Run(const ops::EmbeddingForward& op) {
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.table), to = AsRows<T>(op.out);
    const int32_t* id = op.ids.as<int32_t>();
    ForRanges(pool_, to.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t local = id[row] - op.first_id;
        if (local >= 0 && local < from.rows) {
          std::memcpy(to.row(row), from.row(local), to.columns * sizeof(T));
        } else {
          std::memset(static_cast<void*>(to.row(row)), 0, to.columns * sizeof(T));
        }
      }
    });
  });
}

void CpuBackend::Run(const ops::EmbeddingBackward& op) {
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.d_out);
    const Rows<float> to = AsRows<float>(op.d_table);
    if (op.units > 1) {
      AddInUnits(pool_, from, op, to);
      return;
    }
    const auto add_by_ids = TESSERA_CHOOSE(AddByIds<T>);
    // Strips of columns: each thread processes the rows of one id in their order.
    ForRanges(pool_, to.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      add_by_ids(from.data + begin, from.stride, from.rows, op.ids.as<int32_t>(), op.first_id,
                 to.rows, end - begin, to.data + begin, to.stride);
    });
  });
}

void CpuBackend::Run(const ops::AddPositions& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> positions = AsRows<T>(op.table), rows = AsRows<T>(op.x);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    ForRanges(pool_, rows.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        add_range(rows.row(row), positions.row(row % op.sequence), rows.columns, rows.row(row));
      }
    });
  });
}

void CpuBackend::Run(const ops::AddPositionsBackward& op) {
  WithType(op.d_x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.d_x);
    const Rows<float> to = AsRows<float>(op.d_table);
    const auto sum_every = TESSERA_CHOOSE(SumEvery<T>);
    ForSegments(pool_, op.sequence, to.columns, [&](int64_t t, int64_t begin, int64_t end, int) {
      sum_every(from.row(t) + begin, from.rows / op.sequence, op.units, op.sequence * from.stride,
                end - begin, op.accumulate, to.row(t) + begin);
    });
    if (op.accumulate) return;
    // Positions beyond the sequence have no gradient.
    for (int64_t t = op.sequence; t < to.rows; ++t) std::memset(to.row(t), 0, to.columns * 4);
  });
}

void CpuBackend::Run(const ops::Rope& op) {
  const int64_t batch = op.x.dim(0), sequence = op.x.dim(1), heads = op.x.dim(2),
                half = op.x.dim(3) / 2;
  const Rows<float> cosines = AsRows<float>(op.cos), sines = AsRows<float>(op.sin);
  const float sign = op.inverse ? -1.0f : 1.0f;
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const auto rotate = TESSERA_CHOOSE(Rotate<T>);
    ForRanges(pool_, batch * sequence, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % sequence;
        T* token = op.x.as<T>() + row / sequence * op.x.stride(0) + t * op.x.stride(1);
        rotate(cosines.row(t), sines.row(t), sign, half, heads, op.x.stride(2), token);
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
