// LayerNorm and RMSNorm. R rows, C columns.

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

// A warp takes a row. Each lane loads kHeldRuns runs at once and holds them in registers, so that
// memory is read once; runs beyond are read again by each of the passes.
template <bool kCenters, bool kPacks, bool kAdds, int kHeldRuns, typename T>
TESSERA_KERNEL void NormForwardRows(NormInput<kAdds, T> input, NormOutput<T> op) {
  constexpr int kPack = kPackOf<T>, kStep = simt::kWarpSize * kPack;
  const int64_t row = WarpRow(), columns = input.x.columns;
  if (row >= input.x.rows) return;
  const int first = simt::Lane() * kPack;  // column of the lane
  float mean = 0, sum = 0, squares = 0, held[kHeldRuns][kPack];
  using Run = typename NormInput<kAdds, T>::Run;
  const auto read = [&](const Run& run, int64_t column, float(&values)[kPack]) {
    input.template Finish<kPacks>(run, row, column, values);
    for (const float value : values) {
      if constexpr (kCenters) sum += value;
      if constexpr (!kCenters) squares = fmaf(value, value, squares);
    }
  };
  Run loaded[kHeldRuns];
#pragma unroll
  for (int i = 0; i < kHeldRuns; ++i) {
    loaded[i] = input.template Load<kPacks>(row, i * kStep + first);
  }
#pragma unroll
  for (int i = 0; i < kHeldRuns; ++i) read(loaded[i], i * kStep + first, held[i]);
  for (int64_t column = kHeldRuns * kStep + first; column < columns; column += kStep) {
    float values[kPack];
    read(input.template Load<kPacks>(row, column), column, values);
  }
  const auto for_runs = [&](auto body) {
#pragma unroll
    for (int i = 0; i < kHeldRuns; ++i) {
      const int64_t column = i * kStep + first;
      if (column < columns) body(column, columns - column, held[i]);
    }
    for (int64_t column = kHeldRuns * kStep + first; column < columns; column += kStep) {
      float values[kPack];
      LoadRun<kPacks>(input.x.At(row, column), columns - column, values);
      body(column, columns - column, values);
    }
  };
  if constexpr (kCenters) {
    mean = simt::WarpSum(sum) / static_cast<float>(columns);
    for_runs([&](int64_t /*column*/, int64_t left, const auto& values) {
      for (int i = 0; i < kPack; ++i) {
        const float centered = kPacks || i < left ? values[i] - mean : 0.0f;
        squares = fmaf(centered, centered, squares);
      }
    });
  }
  const float variance = simt::WarpSum(squares) / static_cast<float>(columns);
  const float rstd = 1.0f / sqrtf(variance + op.epsilon);
  for_runs([&](int64_t column, int64_t left, auto& values) {
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

// Runs of a row that a lane holds: of the shorter rows, so that more warps fit on a
// multiprocessor, and of longer ones.
inline constexpr int kFewHeldRuns = 4, kHeldRuns = 8;

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
  const bool few = input.x.columns <= int64_t{kFewHeldRuns} * simt::kWarpSize * kPack;
  WithBool(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
    WithBool(few, [&]<bool kFew>(std::bool_constant<kFew>) {
      constexpr int kRuns = kFew ? kFewHeldRuns : kHeldRuns;
      simt::Launch<NormForwardRows<kCenters, kPacks, kAdds, kRuns, T>>(
          WarpRowGrid(input.x.rows), kWarpRowThreads, 0, stream, input, to);
    });
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

// At most, so that each has 80 registers, with which the 1024 runs of a large matrix of 768 columns
// are on an H200 at the same time.
inline constexpr int kMaxNormThreads = 768;
// Where accumulators are larger, they are in global memory; every device has this much.
inline constexpr int64_t kMaxNormSharedBytes = 96 * 1024;

// Where a thread adds up what its columns contribute to d_weight and d_bias: in registers if it has
// one pack of each row, in shared memory beside the other threads', or else in `partials`.
enum class NormSums { kRegisters, kShared, kGlobal };

template <typename T>
struct RunPlaces {
  const T *x, *d_out;
  T* d_x;
};

// What is read of a run of columns of one row.
template <typename T>
struct NormRun {
  simt::Stored<T, kPackOf<T>> x, d_out, before;
  float mean, rstd;
};

// One block a run of rows, which it takes one after the other. A thread has the same columns in
// each: in round r, those of run r * threads + thread. With sums in registers, a row is read while
// the one before it is reduced, and held in registers; otherwise it is read twice.
template <bool kCenters, bool kPacks, NormSums kSums, typename T>
TESSERA_KERNEL void TESSERA_BOUNDS(kMaxNormThreads, 1)
    NormBackwardRuns(NormGradient<T> op, RowRuns runs, int rounds, float* partials) {
  constexpr int kPack = kPackOf<T>, kQuantities = kCenters ? 2 : 1;
  constexpr bool kHolds = kSums == NormSums::kRegisters;
  const int threads = simt::ThreadCount(), thread = simt::ThreadIndex();
  const int64_t columns = op.x.columns, block = simt::BlockX();
  simt::SharedMemory memory;
  const auto warp_sums = memory.Take<float>(2 * kQuantities * simt::kWarpSize);
  const auto sums =
      memory.Take<float>(kSums == NormSums::kShared ? kQuantities * rounds * threads * kPack : 0);
  float* const partial = partials + block * kQuantities * columns;
  const auto for_own_runs = [&](auto body) {
    for (int round = 0; round < (kHolds ? 1 : rounds); ++round) {
      const int64_t column = static_cast<int64_t>(round * threads + thread) * kPack;
      if (column < columns) body(round, column, columns - column);
    }
  };
  float own_sums[kQuantities][kPack] = {};
  const auto add = [&](int q, int round, int64_t column, int i, bool first, float value,
                       float factor) {
    if constexpr (kSums == NormSums::kRegisters) {
      own_sums[q][i] = fmaf(value, factor, own_sums[q][i]);
    } else if constexpr (kSums == NormSums::kShared) {
      const int place = ((q * rounds + round) * kPack + i) * threads + thread;
      sums.Set(place, fmaf(value, factor, first ? 0.0f : sums.Get(place)));
    } else {
      float* const place = partial + q * columns + column + i;
      if (column + i < columns) *place = fmaf(value, factor, first ? 0.0f : *place);
    }
  };
  // Begins to load a run; what all lanes have in common comes last, since its use may wait.
  const auto load = [&](int64_t row, const RunPlaces<T>& at, int64_t left) {
    NormRun<T> run;
    run.x = LoadStoredRun<kPacks>(at.x, left);
    run.d_out = LoadStoredRun<kPacks>(at.d_out, left);
    run.before = LoadStoredRun<kPacks>(at.d_x, op.accumulate_dx ? left : 0);
    run.mean = kCenters ? op.means[row] : 0.0f;
    run.rstd = op.rstds[row];
    return run;
  };
  // Set dy, and n and g of the formulas above.
  float scales[kPack], dy[kPack], n[kPack], g[kPack];
  const auto set_terms = [&](const NormRun<T>& run, int64_t column, int64_t left) {
    if constexpr (!kHolds) LoadRun<kPacks>(op.weight + column, left, scales);
    simt::Unpack<T>(run.x, n);
    simt::Unpack<T>(run.d_out, dy);
    for (int i = 0; i < kPack; ++i) {
      n[i] = (n[i] - run.mean) * run.rstd;
      g[i] = dy[i] * scales[i];
    }
  };
  const int64_t begin = runs.Begin(block), end = runs.End(block), own_column = thread * kPack;
  const auto places = [&](int64_t row, int64_t column) {
    return RunPlaces<T>{op.x.At(row, column), op.d_out.At(row, column), op.d_x.At(row, column)};
  };
  NormRun<T> run;
  [[maybe_unused]] NormRun<T> next;  // of the row that follows
  [[maybe_unused]] RunPlaces<T> next_at = places(begin, own_column);
  if constexpr (kHolds) {
    if (own_column < columns) LoadRun<kPacks>(op.weight + own_column, columns - own_column, scales);
    next = load(begin, next_at, columns - own_column);
  }
  for (int64_t row = begin; row < end; ++row) {
    RunPlaces<T> at = next_at;
    if constexpr (kHolds) {
      run = next;
      next_at = {at.x + op.x.stride, at.d_out + op.d_out.stride, at.d_x + op.d_x.stride};
      if (row + 1 < end) next = load(row + 1, next_at, columns - own_column);
    }
    float row_sums[kQuantities] = {};  // of g * n, and of g
    for_own_runs([&](int round, int64_t column, int64_t left) {
      if constexpr (!kHolds) run = load(row, places(row, column), left);
      set_terms(run, column, left);
      for (int i = 0; i < kPack; ++i) {
        row_sums[0] = fmaf(g[i], n[i], row_sums[0]);
        if constexpr (kCenters) row_sums[1] += g[i];
        add(0, round, column, i, row == begin, dy[i], n[i]);
        if constexpr (kCenters) add(1, round, column, i, row == begin, dy[i], 1.0f);
      }
    });
    // Two places by turns: a warp that is ahead does not change what others read.
    const int place = static_cast<int>((row - begin) % 2) * kQuantities * simt::kWarpSize;
    for (int q = 0; q < kQuantities; ++q) {
      const float sum = simt::WarpSum(row_sums[q]);
      if (simt::Lane() == 0) warp_sums.Set(place + q * simt::kWarpSize + simt::WarpIndex(), sum);
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
    for_own_runs([&](int /*round*/, int64_t column, int64_t left) {
      if constexpr (!kHolds) {
        at = places(row, column);
        run = load(row, at, left);
        set_terms(run, column, left);
      }
      float values[kPack];
      simt::Unpack<T>(run.before, values);
      for (int i = 0; i < kPack; ++i) {
        values[i] = run.rstd * fmaf(-n[i], mean_gn, g[i] - mean_g) + values[i];
      }
      StoreRun<kPacks>(values, left, at.d_x);
    });
  }
  if constexpr (kSums == NormSums::kGlobal) return;
  for_own_runs([&](int round, int64_t column, int64_t left) {
    for (int q = 0; q < kQuantities; ++q) {
      for (int i = 0; i < kPack && i < left; ++i) {
        const int place = ((q * rounds + round) * kPack + i) * threads + thread;
        partial[q * columns + column + i] = kHolds ? own_sums[q][i] : sums.Get(place);
      }
    }
  });
}

template <bool kCenters, typename T>
void LaunchNormBackward(simt::Stream stream, const NormGradient<T>& op, const RowRuns& runs,
                        float* partials, bool accumulate,
                        const SumOutputs<kCenters ? 2 : 1>& outputs) {
  constexpr int kPack = kPackOf<T>, kQuantities = kCenters ? 2 : 1;
  const int64_t row_packs = simt::BlocksOf(op.x.columns, kPack);
  const int rounds = static_cast<int>(simt::BlocksOf(row_packs, kMaxNormThreads));
  const int64_t warps = simt::BlocksOf(row_packs, int64_t{rounds} * simt::kWarpSize);
  const int threads = static_cast<int>(warps) * simt::kWarpSize;
  const int64_t own_bytes = 2 * kQuantities * simt::kWarpSize * sizeof(float);
  const int64_t sums_bytes = int64_t{kQuantities} * rounds * threads * kPack * 4;
  const auto launch = [&]<bool kPacks, NormSums kSums>() {
    simt::Launch<NormBackwardRuns<kCenters, kPacks, kSums, T>>(
        {runs.runs()}, threads, own_bytes + (kSums == NormSums::kShared ? sums_bytes : 0), stream,
        op, runs, rounds, partials);
  };
  const bool packs = AllowsPacks<kPack>(op.d_out, op.x, op.d_x) && AllowsPacks<kPack>(op.weight);
  if (packs && rounds == 1) {
    launch.template operator()<true, NormSums::kRegisters>();
  } else if (own_bytes + sums_bytes <= kMaxNormSharedBytes) {
    WithBool(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      launch.template operator()<kPacks, NormSums::kShared>();
    });
  } else {
    WithBool(packs, [&]<bool kPacks>(std::bool_constant<kPacks>) {
      launch.template operator()<kPacks, NormSums::kGlobal>();
    });
  }
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
