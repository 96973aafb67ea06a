// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by row. R rows, C columns.
// With g = d_y * weight and n = x * rstd:  d_x = rstd * (g - n * mean(g * n)), d_weight = sum over
// rows of d_y * n.

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
  CHECK(out.dtype() == weight.dtype() && rstd.dtype() == DType::kF32);
  CHECK(from.rows == to.rows && from.columns == to.columns);
  CHECK(weight.elements() == from.columns && rstd.elements() == from.rows);
  const T* const scale = weight.as<T>();
  const bool packs = AllowsPacks(input) && AllowsPacks(to) && AllowsPacks(scale);
  WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
    simt::Launch<RmsNormForwardRows<kPacks, kAdds, T>>(
        WarpRowGrid(from.rows), kWarpRowThreads, 0, stream, input, scale,
        static_cast<float>(epsilon), to, rstd.as<float>());
  });
}

}  // namespace

void DeviceKernels::RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                                   TensorView rstd) {
  const Operation here("RmsNormForward", x, weight, out, rstd);
  CHECK(x.dtype() == out.dtype());
  WithType(x.dtype(), [&]<typename T>(T) {
    LaunchRmsNormForward(stream(), NormInputOf<T>(x), weight, epsilon, out, rstd);
  });
}

void DeviceKernels::AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                                      double epsilon, TensorView out, TensorView rstd) {
  const Operation here("AddRmsNormForward", a, b, weight, out);
  CHECK(sum.dtype() == out.dtype());
  WithType(sum.dtype(), [&]<typename T>(T) {
    LaunchRmsNormForward(stream(), NormInputOf<T>(a, b, sum), weight, epsilon, out, rstd);
  });
}

void DeviceKernels::RmsNormBackward(TensorView d_out, TensorView x, TensorView weight,
                                    TensorView rstd, TensorView d_x, bool accumulate_dx,
                                    TensorView d_weight, bool accumulate) {
  const Operation here("RmsNormBackward", d_out, x, weight, rstd);
  CHECK(x.dtype() == d_out.dtype() && x.dtype() == weight.dtype() && x.dtype() == d_x.dtype());
  CHECK(d_weight.dtype() == DType::kF32 && rstd.dtype() == DType::kF32);
  WithType(x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(d_out), input = AsRows<T>(x), dx = AsRows<T>(d_x);
    const int64_t rows = input.rows, columns = input.columns;
    CHECK(dy.rows == rows && dx.rows == rows && rstd.elements() == rows);
    CHECK(dy.columns == columns && dx.columns == columns);
    CHECK(weight.elements() == columns && d_weight.elements() == columns);
    const T* const scale = weight.as<T>();
    const float* const rstds = rstd.as<float>();
    const bool packs =
        AllowsPacks(dy) && AllowsPacks(input) && AllowsPacks(dx) && AllowsPacks(scale);
    void* const partials = Scratch(ColumnSumsScratchBytes<1>(rows, columns));
    if (partials == nullptr) return;
    LaunchColumnSums<1>(stream(), RmsNormWeightBody<T>{dy, input, rstds}, rows, columns, accumulate,
                        partials, {{d_weight.as<float>()}});
    WithPacks(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      simt::Launch<RmsNormBackwardRows<kPacks, T>>(WarpRowGrid(rows), kWarpRowThreads, 0, stream(),
                                                   dy, input, scale, rstds, dx, accumulate_dx);
    });
  });
}

}  // namespace tessera::cuda
