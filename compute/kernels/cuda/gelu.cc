// GELU, tanh form: y = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), and dy/dx = s +
// x s (1 - s) 2u'. Sigmoids do not cancel where 1 + tanh(u) does.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/elementwise.h"
#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

TESSERA_DEVICE float TwiceU(float x) {
  constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;
  return kTwoSqrt2OverPi * fmaf(0.044715f * x * x, x, x);
}

TESSERA_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
struct GeluForwardBody {
  Rows<T> x, out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    float values[kCount];
    simt::LoadPack(x.data + row * x.stride + column, values);
    for (float& value : values) {
      const float s = Sigmoid(TwiceU(value));
      value = s == 0.0f ? 0.0f : value * s;  // not -infinity * 0
    }
    simt::StorePack(values, out.data + row * out.stride + column);
  }
};

template <typename T>
struct GeluBackwardBody {
  Rows<T> d_out, x, d_x;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;
    float values[kCount], gradients[kCount];
    simt::LoadPack(x.data + row * x.stride + column, values);
    simt::LoadPack(d_out.data + row * d_out.stride + column, gradients);
    for (int i = 0; i < kCount; ++i) {
      const float value = values[i];
      const float slope = kTwoSqrt2OverPi * fmaf(3.0f * 0.044715f * value, value, 1.0f);
      const float s = Sigmoid(TwiceU(value));
      // For large |x|, s is 0 or 1 and x * slope may be infinite: avoid 0 * infinity.
      const float bell = s * (1.0f - s);
      gradients[i] *= s + (bell == 0.0f ? 0.0f : value * slope * bell);
    }
    simt::StorePack(gradients, d_x.data + row * d_x.stride + column);
  }
};

}  // namespace

void DeviceKernels::GeluForward(TensorView x, TensorView out) {
  const Operation here("GeluForward", x, out);
  CHECK(x.dtype() == out.dtype() && x.shape() == out.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const GeluForwardBody<T> body = {AsRows<T>(x), AsRows<T>(out)};
    LaunchForEach(stream(), body.x.rows, body.x.columns,
                  AllowsPacks(body.x) && AllowsPacks(body.out), body);
  });
}

void DeviceKernels::GeluBackward(TensorView d_out, TensorView x, TensorView d_x) {
  const Operation here("GeluBackward", d_out, x, d_x);
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == d_x.dtype());
  CHECK(x.shape() == d_out.shape() && x.shape() == d_x.shape());
  WithType(x.dtype(), [&]<typename T>(T) {
    const GeluBackwardBody<T> body = {AsRows<T>(d_out), AsRows<T>(x), AsRows<T>(d_x)};
    LaunchForEach(stream(), body.x.rows, body.x.columns,
                  AllowsPacks(body.d_out) && AllowsPacks(body.x) && AllowsPacks(body.d_x), body);
  });
}

}  // namespace tessera::cuda
