// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by row. R rows, C columns.
// With g = d_y * weight and n = x * rstd:  d_x = rstd * (g - n * mean(g * n)), d_weight = sum over
// rows of d_y * n.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/norm.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

template <typename T>
void ForwardRow(const T* x, const T* weight, int64_t columns, float epsilon, T* out,
                float* rstd_out) {
  F32x16 squares = {};
  ForLanes(columns, [&](int64_t i, auto load, auto) {
    const F32x16 value = load(x + i);
    squares += value * value;
  });
  const float rstd = 1.0f / std::sqrt(ReduceSum(squares) / static_cast<float>(columns) + epsilon);
  ForLanes(columns, [&](int64_t i, auto load, auto store) {
    store(load(x + i) * rstd * load(weight + i), out + i);
  });
  *rstd_out = rstd;
}

template <typename T>
void BackwardRow(const T* d_out, const T* x, const T* weight, int64_t columns, float rstd, T* d_x,
                 bool accumulate, float* d_weight) {
  F32x16 sum_gn = {};
  ForLanes(columns, [&](int64_t i, auto load, auto store) {
    const F32x16 dy = load(d_out + i);
    const F32x16 n = load(x + i) * rstd;
    sum_gn += dy * load(weight + i) * n;
    store(load(d_weight + i) + dy * n, d_weight + i);
  });
  const float mean_gn = ReduceSum(sum_gn) / static_cast<float>(columns);
  ForLanes(columns, [&](int64_t i, auto load, auto store) {
    const F32x16 n = load(x + i) * rstd;
    const F32x16 g = load(d_out + i) * load(weight + i);
    F32x16 result = rstd * (g - n * mean_gn);
    if (accumulate) result += load(d_x + i);
    store(result, d_x + i);
  });
}

}  // namespace

void CpuBackend::RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                                TensorView rstd) {
  CHECK(x.dtype() == out.dtype() && x.dtype() == weight.dtype() && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(x), to = AsRows<T>(out);
    CHECK(from.rows == to.rows && from.columns == to.columns);
    CHECK(weight.elements() == from.columns && rstd.elements() == from.rows);
    ForRanges(pool_, from.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        ForwardRow(from.row(row), weight.as<T>(), from.columns, static_cast<float>(epsilon),
                   to.row(row), rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                                 TensorView d_x, bool accumulate_dx, TensorView d_weight,
                                 bool accumulate) {
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == weight.dtype() && x.dtype() == d_x.dtype());
  CHECK(d_weight.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(d_out), input = AsRows<T>(x), dx = AsRows<T>(d_x);
    const int64_t columns = input.columns;
    CHECK(dy.rows == input.rows && dx.rows == input.rows);
    CHECK(dy.columns == columns && dx.columns == columns);
    CHECK(weight.elements() == columns && d_weight.elements() == columns);
    const NormPartials partials(input.rows, columns, 1);
    float* sums = workspace_.Shared<float>(partials.count());
    ForRanges(pool_, input.rows, partials.rows_per_block(), [&](int64_t begin, int64_t end, int) {
      float* d_weight_part = partials.Clear(sums, begin);
      for (int64_t row = begin; row < end; ++row) {
        BackwardRow(dy.row(row), input.row(row), weight.as<T>(), columns, rstd.as<float>()[row],
                    dx.row(row), accumulate_dx, d_weight_part);
      }
    });
    partials.Combine(pool_, sums, 0, d_weight.as<float>(), accumulate);
  });
}

}  // namespace tessera
