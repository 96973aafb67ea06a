// out = x + bias, by row: the last step of a sum of products over shards. One pass over memory.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/add_bias.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

#if HWY_ONCE
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
    const auto add_range = TESSERA_CHOOSE(AddRange<float, T, T>);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      add_range(from.row(row) + begin, bias.as<T>() + begin, end - begin, to.row(row) + begin);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
