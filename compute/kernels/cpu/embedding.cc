// Embeddings, learned positions and rotary ones.

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
#include "compute/kernels/cpu/vector-inl.h"
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

// Rotary positions: the pair (x1, x2) = (x[i], x[i + D/2]) is rotated by the angle of (t, i).

// The heads of one token, `stride` apart.
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
      sum_every(from.row(t) + begin, from.rows / op.sequence, op.sequence * from.stride,
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
