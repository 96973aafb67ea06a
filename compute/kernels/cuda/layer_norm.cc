// y = (x - mean) * rstd * weight + bias, by row. R rows, C columns.
// With g = d_y * weight and n = (x - mean) * rstd:  d_x = rstd * (g - mean(g) - n * mean(g * n)),
// d_weight = sum over rows of d_y * n, d_bias = sum over rows of d_y.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/column_sums.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/norm_rows.h"
#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <bool kPacks, bool kAdds, typename T>
TESSERA_KERNEL void LayerNormForwardRows(NormInput<kAdds, T> input, const T* weight, const T* bias,
                                         float epsilon, Rows<T> out, float* means, float* rstds) {
  const int64_t row = WarpRow();
  const Rows<T> x = input.x;
  if (row >= x.rows) return;
  const T* const from = x.data + row * x.stride;
  float sum = 0;
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements];
    input.template First<kPacks>(row, column, left, values);
    for (const float value : values) sum += value;
  });
  const float mean = simt::WarpSum(sum) / static_cast<float>(x.columns);
  float squares = 0;
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements];
    LoadRun<kPacks>(from + column, left, values);
    for (int i = 0; i < kPackElements; ++i) {
      const float centered = i < left ? values[i] - mean : 0.0f;
      squares = fmaf(centered, centered, squares);
    }
  });
  const float variance = simt::WarpSum(squares) / static_cast<float>(x.columns);
  const float rstd = 1.0f / sqrtf(variance + epsilon);
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements], shifts[kPackElements];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(bias + column, left, shifts);
    for (int i = 0; i < kPackElements; ++i) {
      values[i] = fmaf((values[i] - mean) * rstd, scales[i], shifts[i]);
    }
    StoreRun<kPacks>(values, left, out.data + row * out.stride + column);
  });
  if (simt::Lane() == 0) {
    means[row] = mean;
    rstds[row] = rstd;
  }
}

template <bool kPacks, typename T>
TESSERA_KERNEL void LayerNormBackwardRows(Rows<T> d_out, Rows<T> x, const T* weight,
                                          const float* means, const float* rstds, Rows<T> d_x,
                                          bool accumulate) {
  const int64_t row = WarpRow();
  if (row >= x.rows) return;
  const float mean = means[row], rstd = rstds[row];
  const T* const from = x.data + row * x.stride;
  const T* const gradients = d_out.data + row * d_out.stride;
  float sum_g = 0, sum_gn = 0;
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements], dy[kPackElements];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(gradients + column, left, dy);
    for (int i = 0; i < kPackElements; ++i) {
      const float g = dy[i] * scales[i];
      sum_g += g;
      sum_gn = fmaf(g, (values[i] - mean) * rstd, sum_gn);
    }
  });
  const float mean_g = simt::WarpSum(sum_g) / static_cast<float>(x.columns);
  const float mean_gn = simt::WarpSum(sum_gn) / static_cast<float>(x.columns);
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements], dy[kPackElements],
        before[kPackElements] = {};
    T* const to = d_x.data + row * d_x.stride + column;
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(gradients + column, left, dy);
    if (accumulate) LoadRun<kPacks>(to, left, before);
    for (int i = 0; i < kPackElements; ++i) {
      const float n = (values[i] - mean) * rstd;
      values[i] = rstd * fmaf(-n, mean_gn, dy[i] * scales[i] - mean_g) + before[i];
    }
    StoreRun<kPacks>(values, left, to);
  });
}

template <typename T>
struct LayerNormWeightBody {
  Rows<T> d_out, x;
  const float* means;
  const float* rstds;

  TESSERA_DEVICE void Add(int64_t row, int64_t column, float (&sums)[2]) const {
    const float dy = simt::ToFloat(d_out.data[row * d_out.stride + column]);
    const float value = simt::ToFloat(x.data[row * x.stride + column]);
    sums[0] = fmaf(dy, (value - means[row]) * rstds[row], sums[0]);
    sums[1] += dy;
  }
};

template <bool kAdds, typename T>
void LaunchLayerNormForward(simt::Stream stream, const NormInput<kAdds, T>& input,
                            const TensorView& weight, const TensorView& bias, double epsilon,
                            const TensorView& out, const TensorView& mean, const TensorView& rstd) {
  const Rows<T> from = input.x, to = AsRows<T>(out);
  CHECK(out.dtype() == weight.dtype() && out.dtype() == bias.dtype());
  CHECK(mean.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  CHECK(from.rows == to.rows && from.columns == to.columns);
  CHECK(weight.elements() == from.columns && bias.elements() == from.columns);
  CHECK(mean.elements() == from.rows && rstd.elements() == from.rows);
  const T *const scale = weight.as<T>(), *const shift = bias.as<T>();
  const bool packs =
      AllowsPacks(input) && AllowsPacks(to) && AllowsPacks(scale) && AllowsPacks(shift);
  WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
    simt::Launch<LayerNormForwardRows<kPacks, kAdds, T>>(
        WarpRowGrid(from.rows), kWarpRowThreads, 0, stream, input, scale, shift,
        static_cast<float>(epsilon), to, mean.as<float>(), rstd.as<float>());
  });
}

}  // namespace

void DeviceKernels::LayerNormForward(TensorView x, TensorView weight, TensorView bias,
                                     double epsilon, TensorView out, TensorView mean,
                                     TensorView rstd) {
  const Operation here("LayerNormForward", x, weight, bias, out);
  CHECK(x.dtype() == out.dtype());
  WithType(x.dtype(), [&]<typename T>(T) {
    LaunchLayerNormForward(stream(), NormInputOf<T>(x), weight, bias, epsilon, out, mean, rstd);
  });
}

void DeviceKernels::AddLayerNormForward(TensorView a, TensorView b, TensorView sum,
                                        TensorView weight, TensorView bias, double epsilon,
                                        TensorView out, TensorView mean, TensorView rstd) {
  const Operation here("AddLayerNormForward", a, b, weight, out);
  CHECK(sum.dtype() == out.dtype());
  WithType(sum.dtype(), [&]<typename T>(T) {
    LaunchLayerNormForward(stream(), NormInputOf<T>(a, b, sum), weight, bias, epsilon, out, mean,
                           rstd);
  });
}

void DeviceKernels::LayerNormBackward(TensorView d_out, TensorView x, TensorView weight,
                                      TensorView mean, TensorView rstd, TensorView d_x,
                                      bool accumulate_dx, TensorView d_weight, TensorView d_bias,
                                      bool accumulate) {
  const Operation here("LayerNormBackward", d_out, x, weight, mean);
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == weight.dtype() && x.dtype() == d_x.dtype());
  CHECK(d_weight.dtype() == DType::kF32 && d_bias.dtype() == DType::kF32);
  CHECK(mean.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(d_out), input = AsRows<T>(x), dx = AsRows<T>(d_x);
    const int64_t rows = input.rows, columns = input.columns;
    CHECK(dy.rows == rows && dx.rows == rows);
    CHECK(mean.elements() == rows && rstd.elements() == rows);
    CHECK(dy.columns == columns && dx.columns == columns && weight.elements() == columns);
    CHECK(d_weight.elements() == columns && d_bias.elements() == columns);
    const T* const scale = weight.as<T>();
    const float *const means = mean.as<float>(), *const rstds = rstd.as<float>();
    const bool packs =
        AllowsPacks(dy) && AllowsPacks(input) && AllowsPacks(dx) && AllowsPacks(scale);
    void* const partials = Scratch(ColumnSumsScratchBytes<2>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<2>(stream(), LayerNormWeightBody<T>{dy, input, means, rstds}, rows, columns,
                        accumulate, partials, {{d_weight.as<float>(), d_bias.as<float>()}});
    WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      simt::Launch<LayerNormBackwardRows<kPacks, T>>(WarpRowGrid(rows), kWarpRowThreads, 0,
                                                     stream(), dy, input, scale, means, rstds, dx,
                                                     accumulate_dx);
    });
  });
}

}  // namespace tessera::cuda
