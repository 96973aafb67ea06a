// GELU, tanh form: y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh(u)) /
// 2 = sigmoid(2u) = s, y = x s and dy/dx = s + x s (1 - s) 2u'. Sigmoids do not cancel where 1 +
// tanh(u) does.

#include <glog/logging.h>

#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

}  // namespace

void CpuBackend::GeluForward(TensorView x, TensorView out) {
  CHECK(x.dtype() == out.dtype() && x.shape() == out.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(x), to = AsRows<T>(out);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* in = from.row(row) + begin;
      T* result = to.row(row) + begin;
      ForLanesFlushed(0, end - begin, [&](int64_t i, auto load, auto store) {
        const F32x16 value = load(in + i);
        const F32x16 u2 = kTwoSqrt2OverPi * (value + kCubic * value * value * value);
        store(value * Sigmoid(u2), result + i);
      });
    });
  });
}

void CpuBackend::GeluBackward(TensorView d_out, TensorView x, TensorView d_x) {
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == d_x.dtype());
  CHECK(x.shape() == d_out.shape() && x.shape() == d_x.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> input = AsRows<T>(x), dy = AsRows<T>(d_out), dx = AsRows<T>(d_x);
    ForSegments(pool_, input.rows, input.columns,
                [&](int64_t row, int64_t begin, int64_t end, int) {
                  const T* in = input.row(row) + begin;
                  const T* grad = dy.row(row) + begin;
                  T* result = dx.row(row) + begin;
                  ForLanesFlushed(0, end - begin, [&](int64_t i, auto load, auto store) {
                    const F32x16 value = load(in + i);
                    const F32x16 square = value * value;
                    const F32x16 u2 = kTwoSqrt2OverPi * (value + kCubic * square * value);
                    const F32x16 slope = kTwoSqrt2OverPi * (1.0f + 3.0f * kCubic * square);
                    const F32x16 s = Sigmoid(u2);
                    // Far out s is 0 or 1, and x * slope may be infinite: no 0 * infinity.
                    const F32x16 bell = s * (1.0f - s);
                    const F32x16 curve = Select(bell == 0.0f, F32x16{}, value * slope * bell);
                    store(load(grad + i) * (s + curve), result + i);
                  });
                });
  });
}

}  // namespace tessera
