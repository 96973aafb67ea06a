// LayerNorm and RMSNorm. R rows, C columns.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// LayerNorm: y = (x - mean) * rstd * weight + bias, by row, with rstd = 1 / sqrt(mean((x - mean)^2)
// + epsilon). With g = d_y * weight and n = (x - mean) * rstd:  d_x = rstd * (g - mean(g) - n *
// mean(g * n)), d_weight = sum over rows of d_y * n, d_bias = sum over rows of d_y.
//
// RMSNorm: the same with means of zero and no bias, not centered.
namespace {

template <typename T>
struct NormOutput {
  const T* weight;
  const T* bias = nullptr;  // as `means`, where rows are centered
  float epsilon;
  Rows<T> out;
  float* means = nullptr;
  float* rstds;
};

// Runs of a row that each lane holds in registers, which suffice for 2048 columns of bf16: memory
// is read once. What is beyond is read again by each of the passes.
inline constexpr int kHeldRuns = 8;

template <bool kCenters, bool kPacks, bool kAdds, typename T>
TESSERA_KERNEL void NormForwardRows(NormInput<kAdds, T> input, NormOutput<T> op) {
  constexpr int kPack = kPackOf<T>, kStep = simt::kWarpSize * kPack;
  const int64_t row = WarpRow(), columns = input.x.columns;
  if (row >= input.x.rows) return;
  float held[kHeldRuns][kPack];
  const auto for_runs = [&]<bool kFirst>(std::bool_constant<kFirst>, auto body) {
    const auto one = [&](int64_t column, bool is_held, float(&values)[kPack]) {
      const int64_t left = columns - column;
      if (left <= 0) return;
      if constexpr (kFirst) {
        input.template First<kPacks>(row, column, left, values);
      } else if (!is_held) {
        LoadRun<kPacks>(input.x.At(row, column), left, values);
      }
      body(column, left, values);
    };
#pragma unroll
    for (int i = 0; i < kHeldRuns; ++i) one(i * kStep + simt::Lane() * kPack, true, held[i]);
    for (int64_t i = kHeldRuns; i * kStep < columns; ++i) {
      float values[kPack];
      one(i * kStep + simt::Lane() * kPack, false, values);
    }
  };
  float mean = 0, squares = 0;
  if constexpr (kCenters) {
    float sum = 0;
    for_runs(std::true_type(), [&](int64_t /*column*/, int64_t /*left*/, const auto& values) {
      for (const float value : values) sum += value;
    });
    mean = simt::WarpSum(sum) / static_cast<float>(columns);
  }
  for_runs(std::bool_constant<!kCenters>(),
           [&](int64_t /*column*/, int64_t left, const auto& values) {
             for (int i = 0; i < kPack; ++i) {
               const float centered = i < left ? values[i] - mean : 0.0f;
               squares = fmaf(centered, centered, squares);
             }
           });
  const float variance = simt::WarpSum(squares) / static_cast<float>(columns);
  const float rstd = 1.0f / sqrtf(variance + op.epsilon);
  for_runs(std::false_type(), [&](int64_t column, int64_t left, auto& values) {
    float scales[kPack];
    [[maybe_unused]] float shifts[kPack];
    LoadRun<kPacks>(op.weight + column, left, scales);
    if constexpr (kCenters) LoadRun<kPacks>(op.bias + column, left, shifts);
    for (int i = 0; i < kPack; ++i) {
      if constexpr (kCenters) {
        values[i] = fmaf((values[i] - mean) * rstd, scales[i], shifts[i]);
      } else {
        values[i] *= rstd * scales[i];
      }
    }
    StoreRun<kPacks>(values, left, op.out.At(row, column));
  });
  if (simt::Lane() != 0) return;
  if constexpr (kCenters) op.means[row] = mean;
  op.rstds[row] = rstd;
}

template <bool kCenters, bool kAdds, typename T, typename Op>
void LaunchNormForward(simt::Stream stream, const NormInput<kAdds, T>& input, const Op& op) {
  constexpr int kPack = kPackOf<T>;
  NormOutput<T> to = {.weight = op.weight.template as<T>(),
                      .epsilon = static_cast<float>(op.epsilon),
                      .out = AsRows<T>(op.out),
                      .rstds = op.rstd.template as<float>()};
  if constexpr (kCenters) {
    to.bias = op.bias.template as<T>();
    to.means = op.mean.template as<float>();
  }
  const bool packs =
      AllowsPacks(input) && AllowsPacks<kPack>(to.out) && AllowsPacks<kPack>(to.weight, to.bias);
  WithBool(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
    simt::Launch<NormForwardRows<kCenters, kPacks, kAdds, T>>(
        WarpRowGrid(input.x.rows), kWarpRowThreads, 0, stream, input, to);
  });
}

}  // namespace

void DeviceKernels::Run(const ops::LayerNormForward& op) {
  const Operation here(*this, "LayerNormForward", op.x, op.weight, op.bias, op.out);
  WithType(op.x.dtype(),
           [&]<typename T>(T) { LaunchNormForward<true>(stream(), NormInputOf<T>(op.x), op); });
}

void DeviceKernels::Run(const ops::AddLayerNormForward& op) {
  const Operation here(*this, "AddLayerNormForward", op.a, op.b, op.weight, op.out);
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    LaunchNormForward<true>(stream(), NormInputOf<T>(op.a, op.b, op.sum), op);
  });
}

void DeviceKernels::Run(const ops::RmsNormForward& op) {
  const Operation here(*this, "RmsNormForward", op.x, op.weight, op.out, op.rstd);
  WithType(op.x.dtype(),
           [&]<typename T>(T) { LaunchNormForward<false>(stream(), NormInputOf<T>(op.x), op); });
}

void DeviceKernels::Run(const ops::AddRmsNormForward& op) {
  const Operation here(*this, "AddRmsNormForward", op.a, op.b, op.weight, op.out);
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    LaunchNormForward<false>(stream(), NormInputOf<T>(op.a, op.b, op.sum), op);
  });
}

// Both backward passes, in one pass over memory.
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

template <typename T, typename Op>
NormGradient<T> NormGradientOf(const Op& op, const float* means) {
  return {AsRows<T>(op.d_out),
          AsRows<T>(op.x),
          op.weight.template as<T>(),
          means,
          op.rstd.template as<float>(),
          AsRows<T>(op.d_x),
          op.accumulate_dx};
}

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
      T* const to = op.d_x.At(row, column);
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
  const int64_t sums_bytes = int64_t{kQuantities} * rounds * threads * kPack * 4;
  const bool shared = own_bytes + sums_bytes <= kMaxNormSharedBytes;
  WithBool(AllowsPacks<kPack>(op.d_out, op.x, op.d_x) && AllowsPacks<kPack>(op.weight),
           [&]<bool kPacks>(std::bool_constant<kPacks>) {
             WithBool(shared, [&]<bool kShared>(std::bool_constant<kShared>) {
               simt::Launch<NormBackwardRuns<kCenters, kPacks, kShared, T>>(
                   {runs.runs()}, threads, own_bytes + (kShared ? sums_bytes : 0), stream, op, runs,
                   rounds, partials);
             });
           });
  LaunchAddRuns<kQuantities>(stream, partials, runs, op.x.columns, accumulate, outputs);
}

}  // namespace

void DeviceKernels::Run(const ops::LayerNormBackward& op) {
  const Operation here(*this, "LayerNormBackward", op.d_out, op.x, op.weight, op.mean);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const NormGradient<T> gradient = NormGradientOf<T>(op, op.mean.as<float>());
    const RowRuns runs(gradient.x.rows);
    float* const partials = Scratch<float>(runs.Partials(2 * gradient.x.columns));
    if (partials == nullptr) return;
    LaunchNormBackward<true>(stream(), gradient, runs, partials, op.accumulate,
                             {{op.d_weight.as<float>(), op.d_bias.as<float>()}});
  });
}

void DeviceKernels::Run(const ops::RmsNormBackward& op) {
  const Operation here(*this, "RmsNormBackward", op.d_out, op.x, op.weight, op.rstd);
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const NormGradient<T> gradient = NormGradientOf<T>(op, nullptr);
    const RowRuns runs(gradient.x.rows);
    float* const partials = Scratch<float>(runs.Partials(gradient.x.columns));
    if (partials == nullptr) return;
    LaunchNormBackward<false>(stream(), gradient, runs, partials, op.accumulate,
                              {{op.d_weight.as<float>()}});
  });
}

}  // namespace tessera::cuda
