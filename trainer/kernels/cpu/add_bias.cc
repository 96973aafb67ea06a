// out = x + bias, by row: the end of a sum of products over shards. One pass over memory.

#include <glog/logging.h>

#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

void CpuBackend::AddBias(TensorView x, TensorView bias, TensorView out) {
  CHECK(x.dtype() == DType::kF32 && x.shape() == out.shape())
      << ToString(x.shape()) << " to " << ToString(out.shape());
  if (bias.empty()) {
    if (x.data() != out.data()) Copy(x, out);
    return;
  }
  WithType(out.dtype(), [&]<typename T>(T) {
    const Rows<float> from = AsRows<float>(x);
    const Rows<T> to = AsRows<T>(out);
    CHECK(bias.dtype() == out.dtype() && bias.contiguous());
    CHECK_EQ(bias.elements(), from.columns);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      const float* in = from.row(row) + begin;
      const T* addend = bias.as<T>() + begin;
      T* result = to.row(row) + begin;
      ForLanes(end - begin, [&](int64_t i, auto load, auto store) {
        store(load(in + i) + load(addend + i), result + i);
      });
    });
  });
}

}  // namespace tessera
