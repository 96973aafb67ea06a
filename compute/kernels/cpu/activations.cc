// GELU, SwiGLU and dropout.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/activations.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/dropout_mask.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

template <typename T>
void GeluForwardRange(const T* x, int64_t count, T* out) {
  ForLanes(count,
           [&](int64_t i, auto load, auto store) HWY_ATTR { store(Gelu(load(x + i)), out + i); });
}

template <typename T>
void GeluBackwardRange(const T* d_out, const T* x, int64_t count, T* d_x) {
  ForLanes(count, [&](int64_t i, auto load, auto store)
                      HWY_ATTR { store(GeluGradient(load(d_out + i), load(x + i)), d_x + i); });
}

template <typename T>
void SwiGluForwardRange(const T* gate, const T* up, int64_t count, T* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store)
                      HWY_ATTR { store(SwiGlu(load(gate + i), load(up + i)), out + i); });
}

template <typename T>
void SwiGluBackwardRange(const T* d_out, const T* gate, const T* up, int64_t count, T* d_gate,
                         T* d_up) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    F32x16 of_gate, of_up;
    SwiGluGradient(load(d_out + i), load(gate + i), load(up + i), &of_gate, &of_up);
    store(of_gate, d_gate + i);
    store(of_up, d_up + i);
  });
}

template <typename T>
void MultiplyByFactors(const float* factors, int64_t count, T* x) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    // Dropped elements become zero whatever their value, NaN included.
    const F32x16 factor = load(factors + i);
    store(ZeroWhere(factor == 0.0f, load(x + i) * factor), x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::Run(const ops::GeluForward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.x), to = AsRows<T>(op.out);
    const auto forward_range = TESSERA_CHOOSE(GeluForwardRange<T>);
    ForSegments(pool_, from.rows, from.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      forward_range(from.row(row) + begin, end - begin, to.row(row) + begin);
    });
  });
}

void CpuBackend::Run(const ops::GeluBackward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> input = AsRows<T>(op.x), dy = AsRows<T>(op.d_out), dx = AsRows<T>(op.d_x);
    const auto backward_range = TESSERA_CHOOSE(GeluBackwardRange<T>);
    ForSegments(pool_, input.rows, input.columns,
                [&](int64_t row, int64_t begin, int64_t end, int) {
                  backward_range(dy.row(row) + begin, input.row(row) + begin, end - begin,
                                 dx.row(row) + begin);
                });
  });
}

void CpuBackend::Run(const ops::SwiGluForward& op) {
  WithType(op.out.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.gate_up), to = AsRows<T>(op.out);
    const int64_t half = to.columns;
    const auto forward_range = TESSERA_CHOOSE(SwiGluForwardRange<T>);
    ForSegments(pool_, to.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* gate = from.row(row) + begin;
      forward_range(gate, gate + half, end - begin, to.row(row) + begin);
    });
  });
}

void CpuBackend::Run(const ops::SwiGluBackward& op) {
  WithType(op.d_out.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(op.d_out), from = AsRows<T>(op.gate_up),
                  to = AsRows<T>(op.d_gate_up);
    const int64_t half = dy.columns;
    const auto backward_range = TESSERA_CHOOSE(SwiGluBackwardRange<T>);
    ForSegments(pool_, dy.rows, half, [&](int64_t row, int64_t begin, int64_t end, int) {
      const T* gate = from.row(row) + begin;
      T* d_gate = to.row(row) + begin;
      backward_range(dy.row(row) + begin, gate, gate + half, end - begin, d_gate, d_gate + half);
    });
  });
}

namespace {

constexpr int64_t kPiece = 1024;

}  // namespace

void CpuBackend::Run(const ops::ApplyDropout& op) {
  if (op.dropout.probability == 0) return;
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.x);
    const auto multiply_range = TESSERA_CHOOSE(MultiplyByFactors<T>);
    ForSegments(pool_, rows.rows, rows.columns, [&](int64_t row, int64_t begin, int64_t end, int) {
      const int64_t global_row = op.dropout.row_offset + row;
      const DropoutMask mask(op.dropout.stream,
                             op.dropout.first_sample + global_row / op.dropout.rows_per_sample,
                             op.dropout.probability);
      const int64_t first = global_row % op.dropout.rows_per_sample * op.dropout.global_columns +
                            op.dropout.column_offset;
      float factors[kPiece];
      for (int64_t piece = begin; piece < end; piece += kPiece) {
        const int64_t count = std::min(kPiece, end - piece);
        mask.Factors(static_cast<uint64_t>(first + piece), count, factors);
        multiply_range(factors, count, rows.row(row) + piece);
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
