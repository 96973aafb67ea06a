// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/swiglu.cc"
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

template <typename T>
void ForwardRange(const T* gate, const T* up, int64_t count, T* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 g = load(gate + i);
    store(g * Sigmoid(g) * load(up + i), out + i);
  });
}

template <typename T>
void BackwardRange(const T* d_out, const T* gate, const T* up, int64_t count, T* d_gate, T* d_up) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 d = load(d_out + i);
    const F32x16 g = load(gate + i);
    const F32x16 u = load(up + i);
    const F32x16 s = Sigmoid(g);
    store(d * u * s * MulAdd(g, 1.0f - s, 1.0f), d_gate + i);
    store(d * g * s, d_up + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::SwiGluForward(TensorView gate_up, TensorView out) {
  CHECK(gate_up.dtype() == out.dtype());
  WithType(out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(gate_up), to = AsRows<T>(out);
    CHECK(from.rows == to.rows && from.columns == 2 * to.columns);
    const int64_t half = to.columns;
    const auto forward_range = TESSERA_CHOOSE(ForwardRange<T>);
    ForSegments(pool_, to.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* gate = from.row(row) + begin;
      forward_range(gate, gate + half, end - begin, to.row(row) + begin);
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
    const auto backward_range = TESSERA_CHOOSE(BackwardRange<T>);
    ForSegments(pool_, dy.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* gate = from.row(row) + begin;
      T* d_gate = to.row(row) + begin;
      backward_range(dy.row(row) + begin, gate, gate + half, end - begin, d_gate, d_gate + half);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
