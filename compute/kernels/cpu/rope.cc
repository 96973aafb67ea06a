// Rotary positions: the pair (x1, x2) = (x[i], x[i + D/2]) is rotated by the angle of (t, i).

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/rope.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

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

void CpuBackend::Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) {
  CHECK_EQ(x.rank(), 4);
  const int64_t batch = x.dim(0), sequence = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  CHECK(x.dim(3) == 2 * half && x.stride(3) == 1) << ToString(x.shape());
  CHECK(cos.dtype() == DType::kF32 && sin.dtype() == DType::kF32);
  const Rows<float> cosines = AsRows<float>(cos), sines = AsRows<float>(sin);
  CHECK(cosines.columns == half && cosines.rows >= sequence);
  CHECK(sines.columns == half && sines.rows >= sequence);
  const float sign = inverse ? -1.0f : 1.0f;
  WithType(x.dtype(), [&]<typename T>(T) {
    const auto rotate = TESSERA_CHOOSE(Rotate<T>);
    ForRanges(pool_, batch * sequence, 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % sequence;
        T* token = x.as<T>() + row / sequence * x.stride(0) + t * x.stride(1);
        rotate(cosines.row(t), sines.row(t), sign, half, heads, x.stride(2), token);
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
