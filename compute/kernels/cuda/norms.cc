// LayerNorm and RMSNorm. R rows, C columns.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/column_sums.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/norm_rows.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

// y = (x - mean) * rstd * weight + bias, by row. R rows, C columns.
// With g = d_y * weight and n = (x - mean) * rstd:  d_x = rstd * (g - mean(g) - n * mean(g * n)),
// d_weight = sum over rows of d_y * n, d_bias = sum over rows of d_y.
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

void DeviceKernels::Run(const ops::LayerNormForward& op) {
  const Operation here("LayerNormForward", op.x, op.weight, op.bias, op.out);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    LaunchLayerNormForward(stream(), NormInputOf<T>(op.x), op.weight, op.bias, op.epsilon, op.out,
                           op.mean, op.rstd);
  });
}

void DeviceKernels::Run(const ops::AddLayerNormForward& op) {
  const Operation here("AddLayerNormForward", op.a, op.b, op.weight, op.out);
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    LaunchLayerNormForward(stream(), NormInputOf<T>(op.a, op.b, op.sum), op.weight, op.bias,
                           op.epsilon, op.out, op.mean, op.rstd);
  });
}

void DeviceKernels::Run(const ops::LayerNormBackward& op) {
  const Operation here("LayerNormBackward", op.d_out, op.x, op.weight, op.mean);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(op.d_out), input = AsRows<T>(op.x), dx = AsRows<T>(op.d_x);
    const int64_t rows = input.rows, columns = input.columns;
    const T* const scale = op.weight.as<T>();
    const float *const means = op.mean.as<float>(), *const rstds = op.rstd.as<float>();
    const bool packs =
        AllowsPacks(dy) && AllowsPacks(input) && AllowsPacks(dx) && AllowsPacks(scale);
    void* const partials = Scratch(ColumnSumsScratchBytes<2>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<2>(stream(), LayerNormWeightBody<T>{dy, input, means, rstds}, rows, columns,
                        op.accumulate, partials,
                        {{op.d_weight.as<float>(), op.d_bias.as<float>()}});
    WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      simt::Launch<LayerNormBackwardRows<kPacks, T>>(WarpRowGrid(rows), kWarpRowThreads, 0,
                                                     stream(), dy, input, scale, means, rstds, dx,
                                                     op.accumulate_dx);
    });
  });
}

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by row. R rows, C columns.
// With g = d_y * weight and n = x * rstd:  d_x = rstd * (g - n * mean(g * n)), d_weight = sum over
// rows of d_y * n.
namespace {

template <bool kPacks, bool kAdds, typename T>
TESSERA_KERNEL void RmsNormForwardRows(NormInput<kAdds, T> input, const T* weight, float epsilon,
                                       Rows<T> out, float* rstds) {
  const int64_t row = WarpRow();
  const Rows<T> x = input.x;
  if (row >= x.rows) return;
  const T* const from = x.data + row * x.stride;
  float squares = 0;
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements];
    input.template First<kPacks>(row, column, left, values);
    for (const float value : values) squares = fmaf(value, value, squares);
  });
  const float mean = simt::WarpSum(squares) / static_cast<float>(x.columns);
  const float rstd = 1.0f / sqrtf(mean + epsilon);
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    for (int i = 0; i < kPackElements; ++i) values[i] *= rstd * scales[i];
    StoreRun<kPacks>(values, left, out.data + row * out.stride + column);
  });
  if (simt::Lane() == 0) rstds[row] = rstd;
}

template <bool kPacks, typename T>
TESSERA_KERNEL void RmsNormBackwardRows(Rows<T> d_out, Rows<T> x, const T* weight,
                                        const float* rstds, Rows<T> d_x, bool accumulate) {
  const int64_t row = WarpRow();
  if (row >= x.rows) return;
  const float rstd = rstds[row];
  const T* const from = x.data + row * x.stride;
  const T* const gradients = d_out.data + row * d_out.stride;
  float sum_gn = 0;
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements], dy[kPackElements];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(gradients + column, left, dy);
    for (int i = 0; i < kPackElements; ++i) {
      sum_gn = fmaf(dy[i] * scales[i], values[i] * rstd, sum_gn);
    }
  });
  const float mean_gn = simt::WarpSum(sum_gn) / static_cast<float>(x.columns);
  ForLaneRuns(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackElements], scales[kPackElements], dy[kPackElements];
    float before[kPackElements] = {};
    T* const to = d_x.data + row * d_x.stride + column;
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(gradients + column, left, dy);
    if (accumulate) LoadRun<kPacks>(to, left, before);
    for (int i = 0; i < kPackElements; ++i) {
      values[i] = rstd * fmaf(-values[i] * rstd, mean_gn, dy[i] * scales[i]) + before[i];
    }
    StoreRun<kPacks>(values, left, to);
  });
}

template <typename T>
struct RmsNormWeightBody {
  Rows<T> d_out, x;
  const float* rstds;

  TESSERA_DEVICE void Add(int64_t row, int64_t column, float (&sums)[1]) const {
    const float dy = simt::ToFloat(d_out.data[row * d_out.stride + column]);
    sums[0] = fmaf(dy, simt::ToFloat(x.data[row * x.stride + column]) * rstds[row], sums[0]);
  }
};

template <bool kAdds, typename T>
void LaunchRmsNormForward(simt::Stream stream, const NormInput<kAdds, T>& input,
                          const TensorView& weight, double epsilon, const TensorView& out,
                          const TensorView& rstd) {
  const Rows<T> from = input.x, to = AsRows<T>(out);
  const T* const scale = weight.as<T>();
  const bool packs = AllowsPacks(input) && AllowsPacks(to) && AllowsPacks(scale);
  WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
    simt::Launch<RmsNormForwardRows<kPacks, kAdds, T>>(
        WarpRowGrid(from.rows), kWarpRowThreads, 0, stream, input, scale,
        static_cast<float>(epsilon), to, rstd.as<float>());
  });
}

}  // namespace

void DeviceKernels::Run(const ops::RmsNormForward& op) {
  const Operation here("RmsNormForward", op.x, op.weight, op.out, op.rstd);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    LaunchRmsNormForward(stream(), NormInputOf<T>(op.x), op.weight, op.epsilon, op.out, op.rstd);
  });
}

void DeviceKernels::Run(const ops::AddRmsNormForward& op) {
  const Operation here("AddRmsNormForward", op.a, op.b, op.weight, op.out);
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    LaunchRmsNormForward(stream(), NormInputOf<T>(op.a, op.b, op.sum), op.weight, op.epsilon,
                         op.out, op.rstd);
  });
}

void DeviceKernels::Run(const ops::RmsNormBackward& op) {
  const Operation here("RmsNormBackward", op.d_out, op.x, op.weight, op.rstd);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(op.d_out), input = AsRows<T>(op.x), dx = AsRows<T>(op.d_x);
    const int64_t rows = input.rows, columns = input.columns;
    const T* const scale = op.weight.as<T>();
    const float* const rstds = op.rstd.as<float>();
    const bool packs =
        AllowsPacks(dy) && AllowsPacks(input) && AllowsPacks(dx) && AllowsPacks(scale);
    void* const partials = Scratch(ColumnSumsScratchBytes<1>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<1>(stream(), RmsNormWeightBody<T>{dy, input, rstds}, rows, columns,
                        op.accumulate, partials, {{op.d_weight.as<float>()}});
    WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      simt::Launch<RmsNormBackwardRows<kPacks, T>>(WarpRowGrid(rows), kWarpRowThreads, 0, stream(),
                                                   dy, input, scale, rstds, dx, op.accumulate_dx);
    });
  });
}

}  // namespace tessera::cuda
