#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/dropout.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/dropout_mask.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

template <typename T>
void MultiplyRange(const float* factors, int64_t count, T* x) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    // Dropped elements become zero whatever their value, NaN included.
    const F32x16 factor = load(factors + i);
    store(ZeroWhere(factor == 0.0f, load(x + i) * factor), x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int64_t kPiece = 1024;

}  // namespace

void CpuBackend::ApplyDropout(const Dropout& dropout, TensorView x) {
  if (dropout.probability == 0) return;
  CHECK_GE(dropout.rows_per_sample, 1);
  CHECK_GE(dropout.row_offset, 0);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(x);
    CHECK_GE(dropout.global_columns, dropout.column_offset + rows.columns);
    const auto multiply_range = TESSERA_CHOOSE(MultiplyRange<T>);
    ForSegments(pool_, rows.rows, rows.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      const int64_t global_row = dropout.row_offset + row;
      const DropoutMask mask(dropout.stream,
                             dropout.first_sample + global_row / dropout.rows_per_sample,
                             dropout.probability);
      const int64_t first =
          global_row % dropout.rows_per_sample * dropout.global_columns + dropout.column_offset;
      float factors[kPiece];
      for (int64_t piece = begin; piece < end; piece += kPiece) {
        const int64_t count = std::min(kPiece, end - piece);
        mask.Factors(static_cast<uint64_t>(first + piece), count, factors);
        multiply_range(factors, count, rows.row(row) + piece);
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
