#include <glog/logging.h>

#include <algorithm>
#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

// Rows are summed in runs, and the runs then added: the rounding error grows with the run, not with
// all rows.
constexpr int64_t kRunRows = 64;

template <typename T>
void SumStrip(const Rows<T>& x, int64_t begin, int64_t end, float* out, bool accumulate) {
  const int64_t width = end - begin;
  float total[kStripColumns] = {};
  for (int64_t first = 0; first < x.rows; first += kRunRows) {
    float run[kStripColumns] = {};
    const int64_t last = std::min(x.rows, first + kRunRows);
    for (int64_t row = first; row < last; ++row) {
      const T* data = x.row(row) + begin;
      ForLanes(width,
               [&](int64_t i, auto load, auto) { Store(Load(run + i) + load(data + i), run + i); });
    }
    for (int64_t i = 0; i < kStripColumns; i += kLanes) {
      Store(Load(total + i) + Load(run + i), total + i);
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    out[begin + i] = accumulate ? out[begin + i] + total[i] : total[i];
  }
}

}  // namespace

void CpuBackend::SumRows(TensorView x, TensorView out, bool accumulate) {
  CHECK(out.dtype() == DType::kF32 && out.contiguous());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(x);
    CHECK_EQ(out.elements(), rows.columns);
    ForRanges(pool_, rows.columns, kStripColumns, [&](int64_t begin, int64_t end, int) {
      SumStrip(rows, begin, end, out.as<float>(), accumulate);
    });
  });
}

}  // namespace tessera
