// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).

#include <glog/logging.h>

#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

void CpuBackend::SwiGluForward(TensorView gate_up, TensorView out) {
  CHECK(gate_up.dtype() == out.dtype());
  WithType(out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(gate_up), to = AsRows<T>(out);
    CHECK(from.rows == to.rows && from.columns == 2 * to.columns);
    const int64_t half = to.columns;
    ForSegments(pool_, to.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* gate = from.row(row) + begin;
      const T* up = gate + half;
      T* result = to.row(row) + begin;
      ForLanesFlushed(0, end - begin, [&](int64_t i, auto load, auto store) {
        const F32x16 g = load(gate + i);
        store(g * Sigmoid(g) * load(up + i), result + i);
      });
    });
  });
}

void CpuBackend::SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) {
  CHECK(gate_up.dtype() == d_out.dtype() && gate_up.dtype() == d_gate_up.dtype());
  CHECK(gate_up.shape() == d_gate_up.shape());
  WithType(d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(d_out), from = AsRows<T>(gate_up), to = AsRows<T>(d_gate_up);
    CHECK(from.rows == dy.rows && from.columns == 2 * dy.columns);
    const int64_t half = dy.columns;
    ForSegments(pool_, dy.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* grad = dy.row(row) + begin;
      const T* gate = from.row(row) + begin;
      T* d_gate = to.row(row) + begin;
      ForLanesFlushed(0, end - begin, [&](int64_t i, auto load, auto store) {
        const F32x16 d = load(grad + i);
        const F32x16 g = load(gate + i);
        const F32x16 u = load(gate + half + i);
        const F32x16 s = Sigmoid(g);
        store(d * u * s * (1.0f + g * (1.0f - s)), d_gate + i);
        store(d * g * s, d_gate + half + i);
      });
    });
  });
}

}  // namespace tessera
