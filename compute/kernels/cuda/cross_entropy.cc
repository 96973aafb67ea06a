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
// The part of a row that a block holds in shared memory. An H200 has enough for two blocks.
constexpr int kHeldBytes = 96 * 1024;

// A part of a row: its maximum, and the sum of exp(logit - max).
struct SoftmaxPart {
  float max;
  float sum;
};
// The parts of the warps, and that of all of them: a multiple of 16 bytes.
constexpr int kPartsBytes = (kStatsWarps + 2) * sizeof(SoftmaxPart);

// One row of stats, as laid out in memory.
struct Stats {
  SoftmaxPart part;
  float target;
};

// Compiles to one instruction and a multiplication.
TESSERA_DEVICE float Exp(float x) { return simt::Exp2(x * 1.44269504f); }

TESSERA_DEVICE SoftmaxPart Combine(SoftmaxPart a, SoftmaxPart b) {
  const float max = simt::MaxOrNan(a.max, b.max);
  if (max == -INFINITY) return {max, 0.0f};
  return {max, a.sum * Exp(a.max - max) + b.sum * Exp(b.max - max)};
}

TESSERA_DEVICE float LossOf(const Stats& stats, int32_t target) {
  return target < 0 ? 0.0f : logf(stats.part.sum) + stats.part.max - stats.target;
}

// Adds kCount logits; those from `valid` on are padding. Computes an exponential for each, and one
// more if they have a new maximum.
template <int kCount>
TESSERA_DEVICE void AddLogits(float (&values)[kCount], int64_t valid, SoftmaxPart* part) {
  float max = part->max;
  if (valid < kCount) {
    for (int i = 0; i < kCount; ++i) values[i] = i < valid ? values[i] : -INFINITY;
  }
  for (const float value : values) max = simt::MaxOrNan(max, value);
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

  // Replaces kCount logits, which are `values`, by their gradient. id: the row's target.
  template <int kCount>
  TESSERA_DEVICE void Backward(int64_t row, int64_t column, int32_t id, SoftmaxPart part,
                               float (&values)[kCount]) const {
    const int64_t left = id < 0 ? 0 : valid - column, target = id - first_id - column;
    const float factor = scale / part.sum;
    for (float& value : values) value = Exp(value - part.max) * factor;
    if (left < kCount) {
      for (int i = 0; i < kCount; ++i) values[i] = i < left ? values[i] : 0.0f;
    }
    if (target >= 0 && target < kCount && target < left) {
      for (int i = 0; i < kCount; ++i) values[i] = i == target ? values[i] - scale : values[i];
    }
    simt::StorePack(values, logits.At(row, column));
  }

  template <int kCount>
  TESSERA_DEVICE void Backward(int64_t row, int64_t column, SoftmaxPart part) const {
    float values[kCount];
    simt::LoadPack(logits.At(row, column), values);
    Backward(row, column, targets[row], part, values);
  }
};

// Returns the number of columns of a row that a block holds in shared memory.
template <typename T>
TESSERA_HOST_DEVICE int HeldColumns(const Rows<T>& logits) {
  constexpr int kMost = kHeldBytes / sizeof(T);
  return logits.columns < kMost ? static_cast<int>(logits.columns) : kMost;
}

// A block for each row. Its threads take turns at runs of columns, the same runs whether or not
// they can be loaded as packs. With kGradient, the stats of the only shard become the loss and the
// gradient at once. Shared memory then holds the packs of the first columns; a pack is touched by
// one thread alone. The other columns are read again.
template <bool kPacks, bool kGradient, typename T>
TESSERA_KERNEL void CrossEntropyRows(SoftmaxRows<T> rows, Stats* stats, Stats* combined,
                                     float* losses) {
  constexpr int kCount = kPackOf<T>, kStep = kStatsThreads * kCount;
  const int64_t row = simt::BlockX();
  const T* const from = rows.logits.data + row * rows.logits.stride;
  simt::SharedMemory memory;
  const simt::SharedArray<SoftmaxPart> parts = memory.Take<SoftmaxPart>(kStatsWarps + 2);
  const int held = kPacks && kGradient ? HeldColumns(rows.logits) : 0;
  constexpr int kPerWord = 4 / sizeof(T);
  const simt::SharedArray<uint32_t> words = memory.Take<uint32_t>(held / kPerWord);
  for (int i = simt::ThreadIndex() * kCount; i < held; i += kStep) {
    words.CopyPackAsync(i / kPerWord, reinterpret_cast<const uint32_t*>(from + i), true);
  }
  if (held > 0) simt::WaitForCopies();
  // Calls body(column, values) for the thread's runs of the columns before `end`.
  const auto for_own_runs = [&](int64_t end, auto body) {
    int i = simt::ThreadIndex() * kCount;
    for (; i < held && i < end; i += kStep) {
      simt::Stored<T, kCount> stored;
      float values[kCount];
      words.GetPack(i / kPerWord, stored.elements);
      simt::Unpack<T>(stored, values);
      body(i, values);
    }
    for (int64_t column = i; column < end; column += kStep) {
      float values[kCount];
      LoadRun<kPacks>(from + column, end - column, values);
      body(column, values);
    }
  };
  SoftmaxPart part = {-INFINITY, 0.0f};
  for_own_runs(rows.valid, [&](int64_t column, float(&values)[kCount]) {
    AddLogits(values, rows.valid - column, &part);
  });
  part = simt::CombineLanes<16, 8, 4, 2, 1>(simt::kAllLanes, part, Combine);
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
    const int32_t id = rows.targets[row];
    for_own_runs(rows.logits.columns, [&](int64_t column, float(&values)[kCount]) {
      if constexpr (kPacks) {
        rows.Backward(row, column, id, part, values);
      } else {
        for (int i = 0; i < kCount && column + i < rows.logits.columns; ++i) {
          float one[1] = {values[i]};
          rows.Backward(row, column + i, id, part, one);
        }
      }
    });
  }
}

template <bool kGradient, typename T>
void LaunchCrossEntropyRows(simt::Stream stream, const SoftmaxRows<T>& rows,
                            const TensorView& stats, const TensorView& combined,
                            const TensorView& losses) {
  WithBool(AllowsPacks<kPackOf<T>>(rows.logits), [&]<bool kPacks>(std::bool_constant<kPacks>) {
    const int held = kPacks && kGradient ? HeldColumns(rows.logits) : 0;
    simt::Launch<CrossEntropyRows<kPacks, kGradient, T>>(
        {rows.logits.rows}, kStatsThreads, kPartsBytes + held * sizeof(T), stream, rows,
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
