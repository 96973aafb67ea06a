// GELU, SwiGLU and dropout.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

// GELU, tanh form: y = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), and dy/dx = s +
// x s (1 - s) 2u'. Sigmoids do not cancel where 1 + tanh(u) does.
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

void DeviceKernels::Run(const ops::GeluForward& op) {
  const Operation here("GeluForward", op.x, op.out);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const GeluForwardBody<T> body = {AsRows<T>(op.x), AsRows<T>(op.out)};
    LaunchForEach(stream(), body.x.rows, body.x.columns, body, body.x, body.out);
  });
}

void DeviceKernels::Run(const ops::GeluBackward& op) {
  const Operation here("GeluBackward", op.d_out, op.x, op.d_x);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const GeluBackwardBody<T> body = {AsRows<T>(op.d_out), AsRows<T>(op.x), AsRows<T>(op.d_x)};
    LaunchForEach(stream(), body.x.rows, body.x.columns, body, body.d_out, body.x, body.d_x);
  });
}

// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).
namespace {

template <typename T>
struct SwiGluForwardBody {
  Rows<T> gate_up, out;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const T* const from = gate_up.data + row * gate_up.stride + column;
    float gates[kCount], ups[kCount];
    simt::LoadPack(from, gates);
    simt::LoadPack(from + out.columns, ups);
    for (int i = 0; i < kCount; ++i) gates[i] *= Sigmoid(gates[i]) * ups[i];
    simt::StorePack(gates, out.data + row * out.stride + column);
  }
};

template <typename T>
struct SwiGluBackwardBody {
  Rows<T> d_out, gate_up, d_gate_up;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const T* const from = gate_up.data + row * gate_up.stride + column;
    T* const to = d_gate_up.data + row * d_gate_up.stride + column;
    float gates[kCount], ups[kCount], gradients[kCount];
    simt::LoadPack(from, gates);
    simt::LoadPack(from + d_out.columns, ups);
    simt::LoadPack(d_out.data + row * d_out.stride + column, gradients);
    for (int i = 0; i < kCount; ++i) {
      const float gate = gates[i], s = Sigmoid(gate), gradient = gradients[i];
      gates[i] = gradient * ups[i] * s * fmaf(gate, 1.0f - s, 1.0f);
      ups[i] = gradient * gate * s;
    }
    simt::StorePack(gates, to);
    simt::StorePack(ups, to + d_out.columns);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::SwiGluForward& op) {
  const Operation here("SwiGluForward", op.gate_up, op.out);
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const SwiGluForwardBody<T> body = {AsRows<T>(op.gate_up), AsRows<T>(op.out)};
    LaunchForEach(stream(), body.out.rows, body.out.columns, body, body.gate_up, body.out);
  });
}

void DeviceKernels::Run(const ops::SwiGluBackward& op) {
  const Operation here("SwiGluBackward", op.d_out, op.gate_up, op.d_gate_up);
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    const SwiGluBackwardBody<T> body = {AsRows<T>(op.d_out), AsRows<T>(op.gate_up),
                                        AsRows<T>(op.d_gate_up)};
    LaunchForEach(stream(), body.d_out.rows, body.d_out.columns, body, body.d_out, body.gate_up,
                  body.d_gate_up);
  });
}

namespace {

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
    T* const at = x.data + row * x.stride + column;
    float values[kCount];
    simt::LoadPack(at, values);
    for (int i = 0; i < kCount; ++i) {
      // Dropped elements become zero whatever their value, NaN included.
      const float factor = factors.Of(static_cast<uint64_t>(first + i));
      values[i] = factor == 0.0f ? 0.0f : values[i] * factor;
    }
    simt::StorePack(values, at);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::ApplyDropout& op) {
  const Operation here("ApplyDropout", op.x);
  if (op.dropout.probability == 0) return;
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.x);
    const DropoutBody<T> body = {rows,
                                 MakeDropoutKey(op.dropout.stream, op.dropout.probability),
                                 simt::Divisor(op.dropout.rows_per_sample),
                                 op.dropout.first_sample,
                                 op.dropout.rows_per_sample,
                                 op.dropout.row_offset,
                                 op.dropout.global_columns,
                                 op.dropout.column_offset};
    LaunchForEach(stream(), rows.rows, rows.columns, body, rows);
  });
}

}  // namespace tessera::cuda
