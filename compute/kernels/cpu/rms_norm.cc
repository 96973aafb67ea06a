// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by row. R rows, C columns.
// With g = d_y * weight and n = x * rstd:  d_x = rstd * (g - n * mean(g * n)), d_weight = sum over
// rows of d_y * n.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/rms_norm.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <cmath>
#include <cstdint>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/norm.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

template <typename T>
void ForwardRow(const T* x, const T* weight, int64_t columns, float epsilon, T* out,
                float* rstd_out) {
  F32x16 squares = {};
  ForLanes(columns, [&](int64_t i, auto load, auto) HWY_ATTR {
    const F32x16 value = load(x + i);
    squares = MulAdd(value, value, squares);
  });
  const float rstd = 1.0f / std::sqrt(ReduceSum(squares) / static_cast<float>(columns) + epsilon);
  ForLanes(columns, [&](int64_t i, auto load, auto store)
                        HWY_ATTR { store(load(x + i) * rstd * load(weight + i), out + i); });
  *rstd_out = rstd;
}

template <typename T>
void BackwardRow(const T* d_out, const T* x, const T* weight, int64_t columns, float rstd, T* d_x,
                 bool accumulate, float* d_weight) {
  F32x16 sum_gn = {};
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 dy = load(d_out + i);
    const F32x16 n = load(x + i) * rstd;
    sum_gn = MulAdd(dy * load(weight + i), n, sum_gn);
    store(MulAdd(dy, n, load(d_weight + i)), d_weight + i);
  });
  const float mean_gn = ReduceSum(sum_gn) / static_cast<float>(columns);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = load(x + i) * rstd;
    const F32x16 g = load(d_out + i) * load(weight + i);
    F32x16 result = rstd * NegMulAdd(n, mean_gn, g);
    if (accumulate) result += load(d_x + i);
    store(result, d_x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                                TensorView rstd) {
  CHECK(x.dtype() == out.dtype() && x.dtype() == weight.dtype() && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(x), to = AsRows<T>(out);
    CHECK(from.rows == to.rows && from.columns == to.columns);
    CHECK(weight.elements() == from.columns && rstd.elements() == from.rows);
    const auto forward_row = TESSERA_CHOOSE(ForwardRow<T>);
    ForRanges(pool_, from.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(from.row(row), weight.as<T>(), from.columns, static_cast<float>(epsilon),
                    to.row(row), rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                                   double epsilon, TensorView out, TensorView rstd) {
  CHECK(sum.dtype() == out.dtype() && sum.dtype() == weight.dtype() && rstd.dtype() == DType::kF32);
  WithType(sum.dtype(), [&]<typename T>(T) {
    const RowSums<T> x(a, b, sum);
    const Rows<T> to = AsRows<T>(out);
    CHECK(x.rows() == to.rows && x.columns() == to.columns);
    CHECK(weight.elements() == to.columns && rstd.elements() == to.rows);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    const auto forward_row = TESSERA_CHOOSE(ForwardRow<T>);
    ForRanges(pool_, to.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(x.Add(add_range, row), weight.as<T>(), to.columns, static_cast<float>(epsilon),
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
    const auto backward_row = TESSERA_CHOOSE(BackwardRow<T>);
    ForRanges(pool_, input.rows, partials.rows_per_block(), [&](int64_t begin, int64_t end, int) {
      float* d_weight_part = partials.Clear(sums, begin);
      for (int64_t row = begin; row < end; ++row) {
        backward_row(dy.row(row), input.row(row), weight.as<T>(), columns, rstd.as<float>()[row],
                     dx.row(row), accumulate_dx, d_weight_part);
      }
    });
    partials.Combine(pool_, sums, 0, d_weight.as<float>(), accumulate);
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
