#include <glog/logging.h>

#include <cstdint>
#include <cstring>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

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
    const int32_t* id = ids.as<int32_t>();
    // Strips of columns: each thread meets the rows of one id in their order.
    ForRanges(pool_, to.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = 0; row < from.rows; ++row) {
        const int64_t local = id[row] - first_id;
        if (local < 0 || local >= to.rows) continue;
        const T* source = from.row(row) + begin;
        float* sum = to.row(local) + begin;
        ForLanes(end - begin, [&](int64_t i, auto load, auto store) {
          store(load(sum + i) + load(source + i), sum + i);
        });
      }
    });
  });
}

void CpuBackend::AddPositions(TensorView table, int64_t sequence, TensorView x) {
  CHECK(table.dtype() == x.dtype());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> positions = AsRows<T>(table), rows = AsRows<T>(x);
    CHECK(positions.columns == rows.columns && positions.rows >= sequence);
    ForRanges(pool_, rows.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* position = positions.row(row % sequence);
        T* data = rows.row(row);
        ForLanes(rows.columns, [&](int64_t i, auto load, auto store) {
          store(load(data + i) + load(position + i), data + i);
        });
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
    ForSegments(pool_, sequence, to.columns, [&](int64_t t, int64_t begin, int64_t end, int) {
      float* sum = to.row(t) + begin;
      ForLanes(end - begin, [&](int64_t i, auto load, auto store) {
        F32x16 total = {};
        for (int64_t row = t; row < from.rows; row += sequence) {
          total += load(from.row(row) + begin + i);
        }
        store(accumulate ? load(sum + i) + total : total, sum + i);
      });
    });
    if (accumulate) return;
    // Positions beyond the sequence got no gradient.
    for (int64_t t = sequence; t < to.rows; ++t) std::memset(to.row(t), 0, to.columns * 4);
  });
}

}  // namespace tessera
