// y = (x - mean) * rstd * weight + bias, by row. R rows, C columns.
// With g = d_y * weight and n = (x - mean) * rstd:  d_x = rstd * (g - mean(g) - n * mean(g * n)),
// d_weight = sum over rows of d_y * n, d_bias = sum over rows of d_y.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/layer_norm.cc"
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

// 1 in the first `count` lanes, 0 in the others.
TESSERA_INLINE F32x16 LanesBelow(int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = 1;
  return Load(lanes);
}

template <typename T>
void ForwardRow(const T* x, const T* weight, const T* bias, int64_t columns, float epsilon, T* out,
                float* mean_out, float* rstd_out) {
  F32x16 sum = {};
  ForLanes(columns, [&](int64_t i, auto load, auto) HWY_ATTR { sum += load(x + i); });
  const float mean = ReduceSum(sum) / static_cast<float>(columns);
  F32x16 squares = {};
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 centered = Load(x + i) - mean;
    squares = MulAdd(centered, centered, squares);
  }
  if (whole < columns) {
    // Lanes past the end count as the mean.
    const F32x16 centered =
        (LoadPart(x + whole, columns - whole) - mean) * LanesBelow(columns - whole);
    squares = MulAdd(centered, centered, squares);
  }
  const float rstd = 1.0f / std::sqrt(ReduceSum(squares) / static_cast<float>(columns) + epsilon);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = (load(x + i) - mean) * rstd;
    store(MulAdd(n, load(weight + i), load(bias + i)), out + i);
  });
  *mean_out = mean;
  *rstd_out = rstd;
}

template <typename T>
void BackwardRow(const T* d_out, const T* x, const T* weight, int64_t columns, float mean,
                 float rstd, T* d_x, bool accumulate, float* d_weight, float* d_bias) {
  F32x16 sum_g = {}, sum_gn = {};
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 dy = load(d_out + i);
    const F32x16 n = (load(x + i) - mean) * rstd;
    const F32x16 g = dy * load(weight + i);  // zero in lanes past the end
    sum_g += g;
    sum_gn = MulAdd(g, n, sum_gn);
    store(MulAdd(dy, n, load(d_weight + i)), d_weight + i);
    store(load(d_bias + i) + dy, d_bias + i);
  });
  const float mean_g = ReduceSum(sum_g) / static_cast<float>(columns);
  const float mean_gn = ReduceSum(sum_gn) / static_cast<float>(columns);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = (load(x + i) - mean) * rstd;
    const F32x16 g = load(d_out + i) * load(weight + i);
    F32x16 result = rstd * NegMulAdd(n, mean_gn, g - mean_g);
    if (accumulate) result += load(d_x + i);
    store(result, d_x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                                  TensorView out, TensorView mean, TensorView rstd) {
  CHECK(x.dtype() == out.dtype() && x.dtype() == weight.dtype() && x.dtype() == bias.dtype());
  CHECK(mean.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(x), to = AsRows<T>(out);
    CHECK(from.rows == to.rows && from.columns == to.columns);
    CHECK(weight.elements() == from.columns && bias.elements() == from.columns);
    CHECK(mean.elements() == from.rows && rstd.elements() == from.rows);
    const auto forward_row = TESSERA_CHOOSE(ForwardRow<T>);
    ForRanges(pool_, from.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(from.row(row), weight.as<T>(), bias.as<T>(), from.columns,
                    static_cast<float>(epsilon), to.row(row), mean.as<float>() + row,
                    rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                                     TensorView bias, double epsilon, TensorView out,
                                     TensorView mean, TensorView rstd) {
  CHECK(sum.dtype() == out.dtype() && sum.dtype() == weight.dtype() && sum.dtype() == bias.dtype());
  CHECK(mean.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  WithType(sum.dtype(), [&]<typename T>(T) {
    const RowSums<T> x(a, b, sum);
    const Rows<T> to = AsRows<T>(out);
    CHECK(x.rows() == to.rows && x.columns() == to.columns);
    CHECK(weight.elements() == to.columns && bias.elements() == to.columns);
    CHECK(mean.elements() == to.rows && rstd.elements() == to.rows);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    const auto forward_row = TESSERA_CHOOSE(ForwardRow<T>);
    ForRanges(pool_, to.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(x.Add(add_range, row), weight.as<T>(), bias.as<T>(), to.columns,
                    static_cast<float>(epsilon), to.row(row), mean.as<float>() + row,
                    rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::LayerNormBackward(TensorView d_out, TensorView x, TensorView weight,
                                   TensorView mean, TensorView rstd, TensorView d_x,
                                   bool accumulate_dx, TensorView d_weight, TensorView d_bias,
                                   bool accumulate) {
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == weight.dtype() && x.dtype() == d_x.dtype());
  CHECK(d_weight.dtype() == DType::kF32 && d_bias.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(d_out), input = AsRows<T>(x), dx = AsRows<T>(d_x);
    const int64_t columns = input.columns;
    CHECK(dy.rows == input.rows && dx.rows == input.rows);
    CHECK(dy.columns == columns && dx.columns == columns && weight.elements() == columns);
    CHECK(d_weight.elements() == columns && d_bias.elements() == columns);
    const NormPartials partials(input.rows, columns, 2);
    float* sums = workspace_.Shared<float>(partials.count());
    const auto backward_row = TESSERA_CHOOSE(BackwardRow<T>);
    ForRanges(pool_, input.rows, partials.rows_per_block(), [&](int64_t begin, int64_t end, int) {
      float* d_weight_part = partials.Clear(sums, begin);
      float* d_bias_part = d_weight_part + columns;
      for (int64_t row = begin; row < end; ++row) {
        backward_row(dy.row(row), input.row(row), weight.as<T>(), columns, mean.as<float>()[row],
                     rstd.as<float>()[row], dx.row(row), accumulate_dx, d_weight_part, d_bias_part);
      }
    });
    partials.Combine(pool_, sums, 0, d_weight.as<float>(), accumulate);
    partials.Combine(pool_, sums, 1, d_bias.as<float>(), accumulate);
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
