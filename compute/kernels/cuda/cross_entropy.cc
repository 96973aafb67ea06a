// Softmax cross-entropy over a vocabulary that may be split: R rows, V local columns, S shards.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr int kStatsThreads = 256;
constexpr int kStatsWarps = kStatsThreads / simt::kWarpSize;
constexpr int kLossThreads = 128;
constexpr int kMaxShardLevels = 32;

// A part of a row: its maximum, and the sum of exp(logit - max).
struct SoftmaxPart {
  float max;
  float sum;
};

TESSERA_DEVICE SoftmaxPart EmptyPart() { return {-INFINITY, 0.0f}; }

TESSERA_DEVICE SoftmaxPart Combine(SoftmaxPart a, SoftmaxPart b) {
  // NaN, unlike fmaxf(), is preserved.
  const float max = a.max > b.max || a.max != a.max ? a.max : b.max;
  if (max == -INFINITY) return {max, 0.0f};
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

// One block a row. Each thread passes once over every 256th column.
template <typename T>
TESSERA_KERNEL void CrossEntropyStatsRows(Rows<T> logits, int64_t valid, const int32_t* targets,
                                          int64_t first_id, float* stats) {
  const int64_t row = simt::BlockX();
  const T* const from = logits.data + row * logits.stride;
  SoftmaxPart part = EmptyPart();
  for (int64_t i = simt::ThreadIndex(); i < valid; i += kStatsThreads) {
    part = Combine(part, {simt::ToFloat(from[i]), 1.0f});
  }
  for (int distance = simt::kWarpSize / 2; distance > 0; distance /= 2) {
    const SoftmaxPart other = {simt::ShuffleXor(simt::kAllLanes, part.max, distance),
                               simt::ShuffleXor(simt::kAllLanes, part.sum, distance)};
    part = Combine(part, other);
  }
  simt::SharedMemory memory;
  const simt::SharedArray<SoftmaxPart> parts = memory.Take<SoftmaxPart>(kStatsWarps);
  if (simt::Lane() == 0) parts.Set(simt::WarpIndex(), part);
  simt::SyncThreads();
  if (simt::ThreadIndex() != 0) return;
  for (int warp = 1; warp < kStatsWarps; ++warp) part = Combine(part, parts.Get(warp));
  const int64_t target = targets[row] - first_id;
  stats[3 * row] = part.max;
  stats[3 * row + 1] = part.sum;
  stats[3 * row + 2] = target >= 0 && target < valid ? simt::ToFloat(from[target]) : 0.0f;
}

// One row of stats, as laid out in memory.
struct Stats {
  SoftmaxPart part;
  float target;
};

// One thread a row. Shards are combined in a binary tree, whose cuts are at powers of two: when
// shard i is there, it is combined with one result per trailing one bit of i, and at the end with
// all that are left.
TESSERA_KERNEL void CrossEntropyLossRows(const Stats* stats, int64_t shards, int64_t rows,
                                         const int32_t* targets, Stats* combined, float* losses) {
  const int64_t row = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (row >= rows) return;
  Stats levels[kMaxShardLevels];
  int occupied = 0;
  Stats total = {};
  for (int64_t shard = 0; shard < shards; ++shard) {
    total = stats[shard * rows + row];
    const bool last = shard + 1 == shards;
    for (int64_t bits = shard; occupied > 0 && (last || bits % 2 == 1); bits /= 2) {
      const Stats& left = levels[--occupied];
      total = {Combine(left.part, total.part), left.target + total.target};
    }
    levels[occupied++] = total;
  }
  combined[row] = total;
  losses[row] = targets[row] < 0 ? 0.0f : logf(total.part.sum) + total.part.max - total.target;
}

template <typename T>
struct CrossEntropyBackwardBody {
  const Stats* combined;
  const int32_t* targets;
  int64_t valid, first_id;
  float scale;
  Rows<T> logits;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const int32_t id = targets[row];
    const SoftmaxPart part = combined[row].part;
    const float factor = scale / part.sum;
    T* const at = logits.data + row * logits.stride + column;
    float values[kCount];
    simt::LoadPack(at, values);
    for (int i = 0; i < kCount; ++i) {
      const bool real = id >= 0 && column + i < valid;
      const float gradient = real ? expf(values[i] - part.max) * factor : 0.0f;
      values[i] = real && column + i == id - first_id ? gradient - scale : gradient;
    }
    simt::StorePack(values, at);
  }
};

}  // namespace

void DeviceKernels::Run(const ops::CrossEntropyStats& op) {
  const Operation here("CrossEntropyStats", op.logits, op.targets, op.stats);
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.logits);
    simt::Launch<CrossEntropyStatsRows<T>>(
        {rows.rows}, kStatsThreads, kStatsWarps * sizeof(SoftmaxPart), stream(), rows, op.valid,
        static_cast<const int32_t*>(op.targets.as<int32_t>()), op.first_id, op.stats.as<float>());
  });
}

void DeviceKernels::Run(const ops::CrossEntropyLoss& op) {
  const Operation here("CrossEntropyLoss", op.stats, op.targets, op.combined, op.losses);
  const int64_t shards = op.stats.dim(0), rows = op.stats.dim(1);
  CHECK(shards >= 1 && shards < int64_t{1} << (kMaxShardLevels - 1)) << shards;
  simt::Launch<CrossEntropyLossRows>({simt::BlocksOf(rows, kLossThreads)}, kLossThreads, 0,
                                     stream(), static_cast<const Stats*>(op.stats.as<Stats>()),
                                     shards, rows,
                                     static_cast<const int32_t*>(op.targets.as<int32_t>()),
                                     op.combined.as<Stats>(), op.losses.as<float>());
}

void DeviceKernels::Run(const ops::CrossEntropyBackward& op) {
  const Operation here("CrossEntropyBackward", op.combined, op.targets, op.logits);
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    const CrossEntropyBackwardBody<T> body = {
        op.combined.as<Stats>(),           op.targets.as<int32_t>(), op.valid, op.first_id,
        static_cast<float>(op.grad_scale), AsRows<T>(op.logits)};
    const int64_t rows = body.logits.rows;
    LaunchForEach(stream(), rows, body.logits.columns, AllowsPacks(body.logits), body);
  });
}

}  // namespace tessera::cuda
