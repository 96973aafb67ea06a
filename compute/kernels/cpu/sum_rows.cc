#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/sum_rows.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Rows are summed in runs, and then the runs are added: the rounding error grows with the run, not
// with the number of rows.
constexpr int64_t kRunRows = 64;

template <typename T>
void SumStrip(const T* x, int64_t rows, int64_t stride, int64_t width, bool accumulate,
              float* out) {
  float total[kStripColumns] = {};
  for (int64_t first = 0; first < rows; first += kRunRows) {
    float run[kStripColumns] = {};
    const int64_t last = std::min(rows, first + kRunRows);
    for (int64_t row = first; row < last; ++row) {
      const T* data = x + row * stride;
      ForLanes(width, [&](int64_t i, auto load, auto)
                          HWY_ATTR { Store(Load(run + i) + load(data + i), run + i); });
    }
    for (int64_t i = 0; i < kStripColumns; i += kLanes) {
      Store(Load(total + i) + Load(run + i), total + i);
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    out[i] = accumulate ? out[i] + total[i] : total[i];
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::SumRows(TensorView x, TensorView out, bool accumulate) {
  CHECK(out.dtype() == DType::kF32 && out.contiguous());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(x);
    CHECK_EQ(out.elements(), rows.columns);
    const auto sum_strip = TESSERA_CHOOSE(SumStrip<T>);
    ForRanges(pool_, rows.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      sum_strip(rows.data + begin, rows.rows, rows.stride, end - begin, accumulate,
                out.as<float>() + begin);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
