// Softmax cross-entropy over a vocabulary that may be split: R rows, V local columns, S shards.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr int kStatsThreads = 256;
constexpr int kStatsWarps = kStatsThreads / simt::kWarpSize;
constexpr int kLossThreads = 128;

// A part of a row: its maximum, and the sum of exp(logit - max).
struct SoftmaxPart {
  float max;
  float sum;
};

// One row of stats, as laid out in memory.
struct Stats {
  SoftmaxPart part;
  float target;
};

// Compiles to one instruction and a multiplication.
TESSERA_DEVICE float Exp(float x) { return exp2f(x * 1.44269504f); }

// NaN, unlike by fmaxf(), is preserved.
TESSERA_DEVICE float Larger(float a, float b) { return a > b || a != a ? a : b; }

TESSERA_DEVICE SoftmaxPart Combine(SoftmaxPart a, SoftmaxPart b) {
  const float max = Larger(a.max, b.max);
  if (max == -INFINITY) return {max, 0.0f};
  return {max, a.sum * Exp(a.max - max) + b.sum * Exp(b.max - max)};
}

TESSERA_DEVICE float LossOf(const Stats& stats, int32_t target) {
  return target < 0 ? 0.0f : logf(stats.part.sum) + stats.part.max - stats.target;
}

// Adds kCount logits, of which those from `valid` on are padding: an exponential for each, and one
// for all where they have a new maximum.
template <int kCount>
TESSERA_DEVICE void AddLogits(float (&values)[kCount], int64_t valid, SoftmaxPart* part) {
  float max = part->max;
  for (int i = 0; i < kCount; ++i) {
    if (i >= valid) values[i] = -INFINITY;
    max = Larger(max, values[i]);
  }
  if (max == -INFINITY) return;
  if (max != part->max) part->sum *= Exp(part->max - max);
  for (const float value : values) part->sum += Exp(value - max);
  part->max = max;
}

template <typename T>
struct SoftmaxRows {
  Rows<T> logits;
  int64_t valid;
  const int32_t* targets;
  int64_t first_id;
  float scale;  // of the gradient

  // Replaces kCount logits by their gradient.
  template <int kCount>
  TESSERA_DEVICE void Backward(int64_t row, int64_t column, SoftmaxPart part) const {
    const int32_t id = targets[row];
    const float factor = scale / part.sum;
    T* const at = logits.At(row, column);
    float values[kCount];
    simt::LoadPack(at, values);
    for (int i = 0; i < kCount; ++i) {
      const bool real = id >= 0 && column + i < valid;
      const float gradient = real ? Exp(values[i] - part.max) * factor : 0.0f;
      values[i] = real && column + i == id - first_id ? gradient - scale : gradient;
    }
    simt::StorePack(values, at);
  }
};

// One block a row, whose threads take runs of columns by turns, the same ones whether they can be
// loaded as packs or not. With kGradient, the stats of the only shard
// become the loss and the gradient at once, while the row is in the cache.
template <bool kPacks, bool kGradient, typename T>
TESSERA_KERNEL void CrossEntropyRows(SoftmaxRows<T> rows, Stats* stats, Stats* combined,
                                     float* losses) {
  constexpr int kCount = kPackOf<T>, kStep = kStatsThreads * kCount;
  const int64_t row = simt::BlockX();
  const T* const from = rows.logits.data + row * rows.logits.stride;
  SoftmaxPart part = {-INFINITY, 0.0f};
  for (int64_t i = simt::ThreadIndex() * kCount; i < rows.valid; i += kStep) {
    float values[kCount];
    LoadRun<kPacks>(from + i, rows.valid - i, values);
    AddLogits(values, rows.valid - i, &part);
  }
  for (int distance = simt::kWarpSize / 2; distance > 0; distance /= 2) {
    const SoftmaxPart other = {simt::ShuffleXor(simt::kAllLanes, part.max, distance),
                               simt::ShuffleXor(simt::kAllLanes, part.sum, distance)};
    part = Combine(part, other);
  }
  simt::SharedMemory memory;
  const simt::SharedArray<SoftmaxPart> parts = memory.Take<SoftmaxPart>(kStatsWarps + 1);
  if (simt::Lane() == 0) parts.Set(simt::WarpIndex(), part);
  simt::SyncThreads();
  if (simt::ThreadIndex() == 0) {
    for (int warp = 1; warp < kStatsWarps; ++warp) part = Combine(part, parts.Get(warp));
    const int64_t target = rows.targets[row] - rows.first_id;
    const bool here = target >= 0 && target < rows.valid;
    const Stats own = {part, here ? simt::ToFloat(from[target]) : 0.0f};
    stats[row] = own;
    if constexpr (kGradient) {
      parts.Set(kStatsWarps, part);
      combined[row] = own;
      losses[row] = LossOf(own, rows.targets[row]);
    }
  }
  if constexpr (kGradient) {
    simt::SyncThreads();
    part = parts.Get(kStatsWarps);
    for (int64_t i = simt::ThreadIndex() * kCount; i < rows.logits.columns; i += kStep) {
      if constexpr (kPacks) {
        rows.template Backward<kCount>(row, i, part);
      } else {
        for (int64_t j = i; j < i + kCount && j < rows.logits.columns; ++j) {
          rows.template Backward<1>(row, j, part);
        }
      }
    }
  }
}

template <bool kGradient, typename T>
void LaunchCrossEntropyRows(simt::Stream stream, const SoftmaxRows<T>& rows,
                            const TensorView& stats, const TensorView& combined,
                            const TensorView& losses) {
  WithBool(AllowsPacks<kPackOf<T>>(rows.logits), [&]<bool kPacks>(std::bool_constant<kPacks>) {
    simt::Launch<CrossEntropyRows<kPacks, kGradient, T>>(
        {rows.logits.rows}, kStatsThreads, (kStatsWarps + 1) * sizeof(SoftmaxPart), stream, rows,
        stats.as<Stats>(), kGradient ? combined.as<Stats>() : nullptr,
        kGradient ? losses.as<float>() : nullptr);
  });
}

// Runs one thread per row.
TESSERA_KERNEL void CrossEntropyLossRows(const Stats* stats, int64_t shards, int64_t rows,
                                         const int32_t* targets, Stats* combined, float* losses) {
  const int64_t row = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (row >= rows) return;
  const Stats total = CombineInTree<Stats>(
      shards, [&](int64_t shard) { return stats[shard * rows + row]; },
      [](const Stats& a, const Stats& b) {
        return Stats{Combine(a.part, b.part), a.target + b.target};
      });
  combined[row] = total;
  losses[row] = LossOf(total, targets[row]);
}

template <typename T>
struct CrossEntropyBackwardBody {
  const Stats* combined;
  SoftmaxRows<T> rows;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    rows.template Backward<kCount>(row, column, combined[row].part);
  }
};

template <typename T, typename Op>
SoftmaxRows<T> RowsOf(const Op& op, int64_t first_id, double scale) {
  return {AsRows<T>(op.logits), op.valid, op.targets.template as<int32_t>(), first_id,
          static_cast<float>(scale)};
}

}  // namespace

void DeviceKernels::Run(const ops::CrossEntropyStats& op) {
  const Operation here(*this, "CrossEntropyStats", op.logits, op.targets, op.stats);
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    LaunchCrossEntropyRows<false>(stream(), RowsOf<T>(op, op.first_id, 1), op.stats, {}, {});
  });
}

void DeviceKernels::Run(const ops::CrossEntropyGradient& op) {
  const Operation here(*this, "CrossEntropyGradient", op.logits, op.targets, op.stats);
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    LaunchCrossEntropyRows<true>(stream(), RowsOf<T>(op, 0, op.grad_scale), op.stats, op.combined,
                                 op.losses);
  });
}

void DeviceKernels::Run(const ops::CrossEntropyLoss& op) {
  const Operation here(*this, "CrossEntropyLoss", op.stats, op.targets, op.combined, op.losses);
  const int64_t shards = op.stats.dim(0), rows = op.stats.dim(1);
  CheckTreeLeaves(shards);
  simt::Launch<CrossEntropyLossRows>({simt::BlocksOf(rows, kLossThreads)}, kLossThreads, 0,
                                     stream(), static_cast<const Stats*>(op.stats.as<Stats>()),
                                     shards, rows,
                                     static_cast<const int32_t*>(op.targets.as<int32_t>()),
                                     op.combined.as<Stats>(), op.losses.as<float>());
}

void DeviceKernels::Run(const ops::CrossEntropyBackward& op) {
  const Operation here(*this, "CrossEntropyBackward", op.combined, op.targets, op.logits);
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    const CrossEntropyBackwardBody<T> body = {op.combined.as<Stats>(),
                                              RowsOf<T>(op, op.first_id, op.grad_scale)};
    const Rows<T>& logits = body.rows.logits;
    LaunchForEach(stream(), logits.rows, logits.columns, body, logits);
  });
}

}  // namespace tessera::cuda
