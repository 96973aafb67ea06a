// LayerNorm and RMSNorm. R rows, C columns.

#include <glog/logging.h>

#include <algorithm>
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
  ForLaneRuns<kPackOf<T>>(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackOf<T>];
    input.template First<kPacks>(row, column, left, values);
    for (const float value : values) sum += value;
  });
  const float mean = simt::WarpSum(sum) / static_cast<float>(x.columns);
  float squares = 0;
  ForLaneRuns<kPackOf<T>>(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackOf<T>];
    LoadRun<kPacks>(from + column, left, values);
    for (int i = 0; i < kPackOf<T>; ++i) {
      const float centered = i < left ? values[i] - mean : 0.0f;
      squares = fmaf(centered, centered, squares);
    }
  });
  const float variance = simt::WarpSum(squares) / static_cast<float>(x.columns);
  const float rstd = 1.0f / sqrtf(variance + epsilon);
  ForLaneRuns<kPackOf<T>>(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackOf<T>], scales[kPackOf<T>], shifts[kPackOf<T>];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    LoadRun<kPacks>(bias + column, left, shifts);
    for (int i = 0; i < kPackOf<T>; ++i) {
      values[i] = fmaf((values[i] - mean) * rstd, scales[i], shifts[i]);
    }
    StoreRun<kPacks>(values, left, out.data + row * out.stride + column);
  });
  if (simt::Lane() == 0) {
    means[row] = mean;
    rstds[row] = rstd;
  }
}

template <bool kAdds, typename T>
void LaunchLayerNormForward(simt::Stream stream, const NormInput<kAdds, T>& input,
                            const TensorView& weight, const TensorView& bias, double epsilon,
                            const TensorView& out, const TensorView& mean, const TensorView& rstd) {
  const Rows<T> from = input.x, to = AsRows<T>(out);
  const T *const scale = weight.as<T>(), *const shift = bias.as<T>();
  constexpr int kPack = kPackOf<T>;
  const bool packs = AllowsPacks(input) && AllowsPacks<kPack>(to) && AllowsPacks<kPack>(scale) &&
                     AllowsPacks<kPack>(shift);
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
  ForLaneRuns<kPackOf<T>>(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackOf<T>];
    input.template First<kPacks>(row, column, left, values);
    for (const float value : values) squares = fmaf(value, value, squares);
  });
  const float mean = simt::WarpSum(squares) / static_cast<float>(x.columns);
  const float rstd = 1.0f / sqrtf(mean + epsilon);
  ForLaneRuns<kPackOf<T>>(x.columns, [&](int64_t column, int64_t left) {
    float values[kPackOf<T>], scales[kPackOf<T>];
    LoadRun<kPacks>(from + column, left, values);
    LoadRun<kPacks>(weight + column, left, scales);
    for (int i = 0; i < kPackOf<T>; ++i) values[i] *= rstd * scales[i];
    StoreRun<kPacks>(values, left, out.data + row * out.stride + column);
  });
  if (simt::Lane() == 0) rstds[row] = rstd;
}

template <bool kAdds, typename T>
void LaunchRmsNormForward(simt::Stream stream, const NormInput<kAdds, T>& input,
                          const TensorView& weight, double epsilon, const TensorView& out,
                          const TensorView& rstd) {
  const Rows<T> from = input.x, to = AsRows<T>(out);
  const T* const scale = weight.as<T>();
  constexpr int kPack = kPackOf<T>;
  const bool packs = AllowsPacks(input) && AllowsPacks<kPack>(to) && AllowsPacks<kPack>(scale);
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

// Both backward passes, in one pass over memory: of RMSNorm as of LayerNorm, but with means of zero
// and no bias.
namespace {

template <typename T>
struct NormGradient {
  Rows<T> d_out, x;
  const T* weight;
  const float* means;  // null: zero
  const float* rstds;
  Rows<T> d_x;
  bool accumulate_dx;
};

inline constexpr int kMaxNormThreads = 512;
// Where accumulators are larger, they are in global memory; every device has this much.
inline constexpr int64_t kMaxNormSharedBytes = 96 * 1024;

// One block a run of rows, which it takes one after the other. A thread has the same columns in
// each: in round r, those of run r * threads + thread. It adds up what its columns contribute to
// d_weight and d_bias: in shared memory beside the other threads', or else in `partials`.
template <bool kCenters, bool kPacks, bool kShared, typename T>
TESSERA_KERNEL void NormBackwardRuns(NormGradient<T> op, RowRuns runs, int rounds,
                                     float* partials) {
  constexpr int kPack = kPackOf<T>, kQuantities = kCenters ? 2 : 1;
  const int threads = simt::ThreadCount(), thread = simt::ThreadIndex();
  const int64_t columns = op.x.columns, run = simt::BlockX();
  simt::SharedMemory memory;
  const auto warp_sums = memory.Take<float>(2 * kQuantities * simt::kWarpSize);
  const auto sums = memory.Take<float>(kShared ? kQuantities * rounds * threads * kPack : 0);
  float* const partial = partials + run * kQuantities * columns;
  const auto for_own_runs = [&](auto body) {
    for (int round = 0; round < rounds; ++round) {
      const int64_t column = static_cast<int64_t>(round * threads + thread) * kPack;
      if (column < columns) body(round, column, columns - column);
    }
  };
  const auto add = [&](int q, int round, int64_t column, int i, bool first, float value,
                       float factor) {
    if constexpr (kShared) {
      const int place = ((q * rounds + round) * kPack + i) * threads + thread;
      sums.Set(place, fmaf(value, factor, first ? 0.0f : sums.Get(place)));
    } else {
      float* const place = partial + q * columns + column + i;
      if (column + i < columns) *place = fmaf(value, factor, first ? 0.0f : *place);
    }
  };
  const int64_t begin = runs.Begin(run), end = runs.End(run);
  for (int64_t row = begin; row < end; ++row) {
    const float mean = kCenters ? op.means[row] : 0.0f, rstd = op.rstds[row];
    const T* const from = op.x.data + row * op.x.stride;
    const T* const gradients = op.d_out.data + row * op.d_out.stride;
    float row_sums[kQuantities] = {};  // of g * n, and of g
    for_own_runs([&](int /*round*/, int64_t column, int64_t left) {
      float values[kPack], scales[kPack], dy[kPack];
      LoadRun<kPacks>(from + column, left, values);
      LoadRun<kPacks>(op.weight + column, left, scales);
      LoadRun<kPacks>(gradients + column, left, dy);
      for (int i = 0; i < kPack; ++i) {
        const float g = dy[i] * scales[i];
        row_sums[0] = fmaf(g, (values[i] - mean) * rstd, row_sums[0]);
        if constexpr (kCenters) row_sums[1] += g;
      }
    });
    // Two places by turns: a warp that is ahead does not change what others read.
    const int place = static_cast<int>((row - begin) % 2) * kQuantities * simt::kWarpSize;
    for (int q = 0; q < kQuantities; ++q) {
      const float sum = simt::WarpSum(row_sums[q]);
      if (simt::Lane() == 0) {
        warp_sums.Set(place + q * simt::kWarpSize + simt::WarpIndex(), sum);
      }
      row_sums[q] = 0;
    }
    simt::SyncThreads();
    for (int warp = 0; warp < threads / simt::kWarpSize; ++warp) {
      for (int q = 0; q < kQuantities; ++q) {
        row_sums[q] += warp_sums.Get(place + q * simt::kWarpSize + warp);
      }
    }
    const float mean_gn = row_sums[0] / static_cast<float>(columns);
    const float mean_g = kCenters ? row_sums[kQuantities - 1] / static_cast<float>(columns) : 0.0f;
    for_own_runs([&](int round, int64_t column, int64_t left) {
      float values[kPack], scales[kPack], dy[kPack], before[kPack] = {};
      T* const to = op.d_x.data + row * op.d_x.stride + column;
      LoadRun<kPacks>(from + column, left, values);
      LoadRun<kPacks>(op.weight + column, left, scales);
      LoadRun<kPacks>(gradients + column, left, dy);
      if (op.accumulate_dx) LoadRun<kPacks>(to, left, before);
      for (int i = 0; i < kPack; ++i) {
        const float n = (values[i] - mean) * rstd;
        add(0, round, column, i, row == begin, dy[i], n);
        if constexpr (kCenters) add(1, round, column, i, row == begin, dy[i], 1.0f);
        values[i] = rstd * fmaf(-n, mean_gn, dy[i] * scales[i] - mean_g) + before[i];
      }
      StoreRun<kPacks>(values, left, to);
    });
  }
  if constexpr (kShared) {
    for_own_runs([&](int round, int64_t column, int64_t left) {
      for (int q = 0; q < kQuantities; ++q) {
        for (int i = 0; i < kPack && i < left; ++i) {
          const int place = ((q * rounds + round) * kPack + i) * threads + thread;
          partial[q * columns + column + i] = sums.Get(place);
        }
      }
    });
  }
}

template <bool kCenters, typename T>
void LaunchNormBackward(simt::Stream stream, const NormGradient<T>& op, const RowRuns& runs,
                        float* partials, bool accumulate,
                        const SumOutputs<kCenters ? 2 : 1>& outputs) {
  constexpr int kPack = kPackOf<T>, kQuantities = kCenters ? 2 : 1;
  const int64_t packs = simt::BlocksOf(op.x.columns, kPack);
  const int64_t warps = simt::BlocksOf(packs, simt::kWarpSize);
  const int threads = static_cast<int>(std::min<int64_t>(warps * simt::kWarpSize, kMaxNormThreads));
  const int rounds = static_cast<int>(simt::BlocksOf(packs, threads));
  const int64_t own_bytes = 2 * kQuantities * simt::kWarpSize * sizeof(float);
  const int64_t bytes = own_bytes + int64_t{kQuantities} * rounds * threads * kPack * 4;
  WithPacks(AllowsPacks<kPack>(op.d_out) && AllowsPacks<kPack>(op.x) &&
                AllowsPacks<kPack>(op.d_x) && AllowsPacks<kPack>(op.weight),
            [&]<bool kPacks>(std::bool_constant<kPacks>) {
              if (bytes <= kMaxNormSharedBytes) {
                simt::Launch<NormBackwardRuns<kCenters, kPacks, true, T>>(
                    {runs.runs()}, threads, bytes, stream, op, runs, rounds, partials);
              } else {
                simt::Launch<NormBackwardRuns<kCenters, kPacks, false, T>>(
                    {runs.runs()}, threads, own_bytes, stream, op, runs, rounds, partials);
              }
            });
  LaunchAddRuns<kQuantities>(stream, partials, runs, op.x.columns, accumulate, outputs);
}

}  // namespace

void DeviceKernels::Run(const ops::LayerNormBackward& op) {
  const Operation here("LayerNormBackward", op.d_out, op.x, op.weight, op.mean);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const NormGradient<T> gradient = {AsRows<T>(op.d_out), AsRows<T>(op.x),     op.weight.as<T>(),
                                      op.mean.as<float>(), op.rstd.as<float>(), AsRows<T>(op.d_x),
                                      op.accumulate_dx};
    const RowRuns runs(gradient.x.rows);
    void* const partials = Scratch(runs.PartialBytes(2 * gradient.x.columns));
    if (partials == nullptr) return;
    LaunchNormBackward<true>(stream(), gradient, runs, static_cast<float*>(partials), op.accumulate,
                             {{op.d_weight.as<float>(), op.d_bias.as<float>()}});
  });
}

void DeviceKernels::Run(const ops::RmsNormBackward& op) {
  const Operation here("RmsNormBackward", op.d_out, op.x, op.weight, op.rstd);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const NormGradient<T> gradient = {
        AsRows<T>(op.d_out), AsRows<T>(op.x),   op.weight.as<T>(), nullptr,
        op.rstd.as<float>(), AsRows<T>(op.d_x), op.accumulate_dx};
    const RowRuns runs(gradient.x.rows);
    void* const partials = Scratch(runs.PartialBytes(gradient.x.columns));
    if (partials == nullptr) return;
    LaunchNormBackward<false>(stream(), gradient, runs, static_cast<float*>(partials),
                              op.accumulate, {{op.d_weight.as<float>()}});
  });
}

}  // namespace tessera::cuda
