#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/embedding.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstdint>
#include <cstring>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// For each row of d_out, in order: adds its columns to those of the row that its id names, if this
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

// sum = the rows of a column strip, `stride` apart, in order (+ sum when accumulate).
template <typename T>
void SumEvery(const T* first, int64_t rows, int64_t stride, int64_t columns, bool accumulate,
              float* sum) {
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    F32x16 total = {};
    for (int64_t row = 0; row < rows; ++row) total += load(first + row * stride + i);
    store(accumulate ? load(sum + i) + total : total, sum + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int64_t kRowsPerBlock = 16;

}  // namespace

void CpuBackend::EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                                  TensorView out) {
  CHECK(ids.dtype() == DType::kI32 && ids.contiguous());
  CHECK(table.dtype() == out.dtype());
  WithType(out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(table), to = AsRows<T>(out);
    CHECK_EQ(from.columns, to.columns);
    CHECK_EQ(ids.elements(), to.rows);
    const int32_t* id = ids.as<int32_t>();
    ForRanges(pool_, to.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t local = id[row] - first_id;
        if (local >= 0 && local < from.rows) {
          std::memcpy(to.row(row), from.row(local), to.columns * sizeof(T));
        } else {
          std::memset(static_cast<void*>(to.row(row)), 0, to.columns * sizeof(T));
        }
      }
    });
  });
}

void CpuBackend::EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                                   TensorView d_table) {
  CHECK(ids.dtype() == DType::kI32 && ids.contiguous() && d_table.dtype() == DType::kF32);
  WithType(d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(d_out);
    const Rows<float> to = AsRows<float>(d_table);
    CHECK_EQ(from.columns, to.columns);
    CHECK_EQ(ids.elements(), from.rows);
    const auto add_by_ids = TESSERA_CHOOSE(AddByIds<T>);
    // Strips of columns: each thread processes the rows of one id in their order.
    ForRanges(pool_, to.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      add_by_ids(from.data + begin, from.stride, from.rows, ids.as<int32_t>(), first_id, to.rows,
                 end - begin, to.data + begin, to.stride);
    });
  });
}

void CpuBackend::AddPositions(TensorView table, int64_t sequence, TensorView x) {
  CHECK(table.dtype() == x.dtype());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> positions = AsRows<T>(table), rows = AsRows<T>(x);
    CHECK(positions.columns == rows.columns && positions.rows >= sequence);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    ForRanges(pool_, rows.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        add_range(rows.row(row), positions.row(row % sequence), rows.columns, rows.row(row));
      }
    });
  });
}

void CpuBackend::AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                                      bool accumulate) {
  CHECK(d_table.dtype() == DType::kF32);
  WithType(d_x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(d_x);
    const Rows<float> to = AsRows<float>(d_table);
    CHECK(from.columns == to.columns && to.rows >= sequence && from.rows % sequence == 0);
    const auto sum_every = TESSERA_CHOOSE(SumEvery<T>);
    ForSegments(pool_, sequence, to.columns, [&](int64_t t, int64_t begin, int64_t end, int) {
      sum_every(from.row(t) + begin, from.rows / sequence, sequence * from.stride, end - begin,
                accumulate, to.row(t) + begin);
    });
    if (accumulate) return;
    // Positions beyond the sequence have no gradient.
    for (int64_t t = sequence; t < to.rows; ++t) std::memset(to.row(t), 0, to.columns * 4);
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
