// GELU, tanh form: y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh(u)) /
// 2 = sigmoid(2u) = s, y = x s and dy/dx = s + x s (1 - s) 2u'. Sigmoids do not cancel where 1 +
// tanh(u) does.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/gelu.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

template <typename T>
void ForwardRange(const T* x, int64_t count, T* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 value = load(x + i);
    const F32x16 u2 = kTwoSqrt2OverPi * MulAdd(kCubic * value * value, value, value);
    store(value * Sigmoid(u2), out + i);
  });
}

template <typename T>
void BackwardRange(const T* d_out, const T* x, int64_t count, T* d_x) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 value = load(x + i);
    const F32x16 square = value * value;
    const F32x16 u2 = kTwoSqrt2OverPi * MulAdd(kCubic * square, value, value);
    const F32x16 slope = kTwoSqrt2OverPi * MulAdd(3.0f * kCubic, square, 1.0f);
    const F32x16 s = Sigmoid(u2);
    // For large |x|, s is 0 or 1 and x * slope may be infinite: avoid 0 * infinity.
    const F32x16 bell = s * (1.0f - s);
    const F32x16 curve = ZeroWhere(bell == 0.0f, value * slope * bell);
    store(load(d_out + i) * (s + curve), d_x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::GeluForward(TensorView x, TensorView out) {
  CHECK(x.dtype() == out.dtype() && x.shape() == out.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(x), to = AsRows<T>(out);
    const auto forward_range = TESSERA_CHOOSE(ForwardRange<T>);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      forward_range(from.row(row) + begin, end - begin, to.row(row) + begin);
    });
  });
}

void CpuBackend::GeluBackward(TensorView d_out, TensorView x, TensorView d_x) {
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == d_x.dtype());
  CHECK(x.shape() == d_out.shape() && x.shape() == d_x.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> input = AsRows<T>(x), dy = AsRows<T>(d_out), dx = AsRows<T>(d_x);
    const auto backward_range = TESSERA_CHOOSE(BackwardRange<T>);
    ForSegments(pool_, input.rows, input.columns,
                [&](int64_t row, int64_t begin, int64_t end, int) {
                  backward_range(dy.row(row) + begin, input.row(row) + begin, end - begin,
                                 dx.row(row) + begin);
                });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
