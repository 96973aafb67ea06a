// GELU, SwiGLU and dropout.

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;

TESSERA_DEVICE float TwiceU(float x) { return kTwoSqrt2OverPi * fmaf(0.044715f * x * x, x, x); }

TESSERA_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// GELU, tanh form: y = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), and dy/dx = s +
// x s (1 - s) 2u'. Sigmoids do not cancel where 1 + tanh(u) does.
struct Gelu {
  TESSERA_DEVICE void operator()(float& x) const {
    const float s = Sigmoid(TwiceU(x));
    x = s == 0.0f ? 0.0f : x * s;  // not -infinity * 0
  }
};

struct GeluGradient {
  TESSERA_DEVICE void operator()(float& gradient, float x) const {
    const float slope = kTwoSqrt2OverPi * fmaf(3.0f * 0.044715f * x, x, 1.0f);
    const float s = Sigmoid(TwiceU(x));
    // For large |x|, s is 0 or 1 and x * slope may be infinite: avoid 0 * infinity.
    const float bell = s * (1.0f - s);
    gradient *= s + (bell == 0.0f ? 0.0f : x * slope * bell);
  }
};

// The rows of `gradient`, which become their product with `F`, rounded, as SumRuns() loads them.
template <typename F, typename T>
struct UpdatedRows {
  F f;
  Rows<T> gradient, x;

  template <int kCount>
  TESSERA_DEVICE void Load(int64_t row, int64_t column, float (&values)[kCount]) const {
    float at[kCount];
    simt::LoadPack(gradient.At(row, column), values);
    simt::LoadPack(x.At(row, column), at);
    for (int i = 0; i < kCount; ++i) {
      f(values[i], at[i]);
      values[i] = simt::ToFloat(simt::FromFloat<T>(values[i]));
    }
    simt::StorePack(values, gradient.At(row, column));
  }
};

// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).
struct SwiGlu {
  TESSERA_DEVICE void operator()(float& gate, float up) const { gate *= Sigmoid(gate) * up; }
};

struct SwiGluGradient {
  TESSERA_DEVICE void operator()(float& gate, float& up, float gradient) const {
    const float g = gate, s = Sigmoid(g);
    gate = gradient * up * s * fmaf(g, 1.0f - s, 1.0f);
    up = gradient * g * s;
  }
};

template <typename T>
struct DropoutBody {
  Rows<T> x;
  DropoutKey key;
  simt::Divisor samples;  // by the rows of one
  int64_t first_sample, rows_per_sample, row_offset, global_columns, column_offset;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const int64_t global_row = row_offset + row;
    const int64_t sample = samples.Quotient(static_cast<uint32_t>(global_row));
    const int64_t first =
        (global_row - sample * rows_per_sample) * global_columns + column_offset + column;
    DropoutFactors factors(key, first_sample + sample);
    float values[kCount];
    simt::LoadPack(x.At(row, column), values);
    for (int i = 0; i < kCount; ++i) {
      // Dropped elements become zero whatever their value, NaN included.
      const float factor = factors.Of(static_cast<uint64_t>(first + i));
      values[i] = factor == 0.0f ? 0.0f : values[i] * factor;
    }
    simt::StorePack(values, x.At(row, column));
  }
};

}  // namespace

void DeviceKernels::Run(const ops::GeluForward& op) {
  const Operation here(*this, "GeluForward", op.x, op.out);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    LaunchMap(stream(), Gelu(), std::tuple(AsRows<T>(op.x)), std::tuple(AsRows<T>(op.out)));
  });
}

void DeviceKernels::Run(const ops::GeluBackward& op) {
  const Operation here(*this, "GeluBackward", op.d_out, op.x, op.d_x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    LaunchMap(stream(), GeluGradient(), std::tuple(AsRows<T>(op.d_out), AsRows<T>(op.x)),
              std::tuple(AsRows<T>(op.d_x)));
  });
}

void DeviceKernels::GeluBackwardAndSum(const TensorView& x, const TensorView& gradient,
                                       const TensorView& sums, bool accumulate) {
  const Operation here(*this, "GeluBackwardAndSum", gradient, x, sums);
  WithType(x.dtype(), [&]<typename T>(T) {
    const UpdatedRows<GeluGradient, T> rows = {{}, AsRows<T>(gradient), AsRows<T>(x)};
    const int64_t count = rows.x.rows, columns = rows.x.columns;
    float* const partials = Scratch<float>(RowRuns(count).Partials(columns));
    if (partials == nullptr) return;
    WithBool(AllowsPacks<kPackOf<T>>(rows.gradient, rows.x),
             [&]<bool kPacks>(std::bool_constant<kPacks>) {
               LaunchSumRows<kPacks ? kPackOf<T> : 1>(stream(), rows, count, columns, partials,
                                                      accumulate, sums.as<float>());
             });
  });
}

void DeviceKernels::Run(const ops::SwiGluForward& op) {
  const Operation here(*this, "SwiGluForward", op.gate_up, op.out);
  WithType(op.out.dtype(), [&]<typename T>(T) {
    LaunchMap(stream(), SwiGlu(), std::tuple(HalfOf<T>(op.gate_up, 0), HalfOf<T>(op.gate_up, 1)),
              std::tuple(AsRows<T>(op.out)));
  });
}

void DeviceKernels::Run(const ops::SwiGluBackward& op) {
  const Operation here(*this, "SwiGluBackward", op.d_out, op.gate_up, op.d_gate_up);
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    LaunchMap(stream(), SwiGluGradient(),
              std::tuple(HalfOf<T>(op.gate_up, 0), HalfOf<T>(op.gate_up, 1), AsRows<T>(op.d_out)),
              std::tuple(HalfOf<T>(op.d_gate_up, 0), HalfOf<T>(op.d_gate_up, 1)));
  });
}

void DeviceKernels::Run(const ops::ApplyDropout& op) {
  const Operation here(*this, "ApplyDropout", op.x);
  const Dropout& dropout = op.dropout;
  if (dropout.probability == 0) return;
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const DropoutBody<T> body = {.x = AsRows<T>(op.x),
                                 .key = MakeDropoutKey(dropout.stream, dropout.probability),
                                 .samples = simt::Divisor(dropout.rows_per_sample),
                                 .first_sample = dropout.first_sample,
                                 .rows_per_sample = dropout.rows_per_sample,
                                 .row_offset = dropout.row_offset,
                                 .global_columns = dropout.global_columns,
                                 .column_offset = dropout.column_offset};
    LaunchForEach(stream(), body.x.rows, body.x.columns, body, body.x);
  });
}

}  // namespace tessera::cuda
