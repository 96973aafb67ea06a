// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).

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

TESSERA_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

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

void DeviceKernels::SwiGluForward(TensorView gate_up, TensorView out) {
  const Operation here("SwiGluForward", gate_up, out);
  CHECK(gate_up.dtype() == out.dtype());
  WithType(out.dtype(), [&]<typename T>(T) {
    const SwiGluForwardBody<T> body = {AsRows<T>(gate_up), AsRows<T>(out)};
    CHECK(body.gate_up.rows == body.out.rows && body.gate_up.columns == 2 * body.out.columns);
    LaunchForEach(stream(), body.out.rows, body.out.columns,
                  AllowsPacks(body.gate_up) && AllowsPacks(body.out), body);
  });
}

void DeviceKernels::SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) {
  const Operation here("SwiGluBackward", d_out, gate_up, d_gate_up);
  CHECK(gate_up.dtype() == d_out.dtype() && gate_up.dtype() == d_gate_up.dtype());
  CHECK(gate_up.shape() == d_gate_up.shape());
  WithType(d_out.dtype(), [&]<typename T>(T) {
    const SwiGluBackwardBody<T> body = {AsRows<T>(d_out), AsRows<T>(gate_up), AsRows<T>(d_gate_up)};
    CHECK(body.gate_up.rows == body.d_out.rows);
    CHECK_EQ(body.gate_up.columns, 2 * body.d_out.columns);
    LaunchForEach(
        stream(), body.d_out.rows, body.d_out.columns,
        AllowsPacks(body.d_out) && AllowsPacks(body.gate_up) && AllowsPacks(body.d_gate_up), body);
  });
}

}  // namespace tessera::cuda
