// Softmax cross-entropy in EXACT numerics: R rows, V local columns, S shards.

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/exact_math.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/row_kernels.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr int kExactLossThreads = 128;
// Number of fp32 terms after which a sum is added to an fp64 one.
constexpr int64_t kRunColumns = 4096;

// One row of stats, as laid out in memory.
struct ExactStats {
  float max;
  float sum;  // of exp(logit - max)
  float target;
};

// Sums runs of columns in lanes, those beyond the last whole sixteen one after the other.
TESSERA_DEVICE float SumExp(const float* logits, int64_t count, float max) {
  const auto power = [&](int64_t i) { return exact::Exp(logits[i] - max); };
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRunColumns) {
    const int64_t left = count - begin, columns = left < kRunColumns ? left : kRunColumns;
    const int64_t whole = begin + columns / exact::kLanes * exact::kLanes;
    total += exact::SumInLanes(begin, whole, [&](int64_t i, float sum) { return sum + power(i); });
    for (int64_t i = whole; i < begin + columns; ++i) total += power(i);
  }
  return static_cast<float>(total);
}

TESSERA_KERNEL void ExactCrossEntropyStats(Rows<float> logits, int64_t valid,
                                           const int32_t* targets, int64_t first_id,
                                           ExactStats* stats) {
  const int64_t row = exact::OwnRow();
  if (row >= logits.rows) return;
  const float* const x = logits.At(row, 0);
  const float max = exact::MaxInLanes(x, valid);
  const float sum = max == -exact::kInfinity ? 0.0f : SumExp(x, valid, max);
  if (exact::LaneOfRow() != 0) return;
  const int64_t target = targets[row] - first_id;
  stats[row] = {max, sum, target >= 0 && target < valid ? x[target] : 0.0f};
}

TESSERA_DEVICE ExactStats CombineExactly(const ExactStats& a, const ExactStats& b) {
  const float max = a.max < b.max ? b.max : a.max;
  if (max == -exact::kInfinity) return {max, 0, a.target + b.target};
  return {max, a.sum * exact::Exp(a.max - max) + b.sum * exact::Exp(b.max - max),
          a.target + b.target};
}

// Runs one thread per row.
TESSERA_KERNEL void ExactCrossEntropyLoss(const ExactStats* stats, int64_t shards, int64_t rows,
                                          const int32_t* targets, ExactStats* combined,
                                          float* losses) {
  const int64_t row = simt::BlockX() * kExactLossThreads + simt::ThreadIndex();
  if (row >= rows) return;
  const ExactStats total = CombineInTree<ExactStats>(
      shards, [&](int64_t shard) { return stats[shard * rows + row]; }, CombineExactly);
  combined[row] = total;
  losses[row] = targets[row] < 0 ? 0.0f : exact::Log(total.sum) + total.max - total.target;
}

struct ExactCrossEntropyGradient {
  const ExactStats* combined;
  Rows<float> logits;
  int64_t valid;
  const int32_t* targets;
  int64_t first_id;
  float scale;

  template <int kCount>
  TESSERA_DEVICE void Run(int64_t row, int64_t column) const {
    const ExactStats stats = combined[row];
    const int32_t id = targets[row];
    const float factor = scale / stats.sum;
    float* const at = logits.At(row, column);
    float values[kCount];
    simt::LoadPack(at, values);
    for (int i = 0; i < kCount; ++i) {
      const float gradient = exact::Exp(values[i] - stats.max) * factor;
      const float result = column + i == id - first_id ? gradient - scale : gradient;
      values[i] = id < 0 || column + i >= valid ? 0.0f : result;
    }
    simt::StorePack(values, at);
  }
};

}  // namespace

void DeviceKernels::RunExact(const ops::CrossEntropyStats& op) {
  const Operation here(*this, "CrossEntropyStats", op.logits, op.targets, op.stats);
  const Rows<float> logits = AsRows<float>(op.logits);
  simt::Launch<ExactCrossEntropyStats>(exact::RowGrid(logits.rows), exact::kRowThreads, 0, stream(),
                                       logits, op.valid,
                                       static_cast<const int32_t*>(op.targets.as<int32_t>()),
                                       op.first_id, op.stats.as<ExactStats>());
}

void DeviceKernels::RunExact(const ops::CrossEntropyLoss& op) {
  const Operation here(*this, "CrossEntropyLoss", op.stats, op.targets, op.combined, op.losses);
  const int64_t shards = op.stats.dim(0), rows = op.stats.dim(1);
  CheckTreeLeaves(shards);
  simt::Launch<ExactCrossEntropyLoss>(
      {simt::BlocksOf(rows, kExactLossThreads)}, kExactLossThreads, 0, stream(),
      static_cast<const ExactStats*>(op.stats.as<ExactStats>()), shards, rows,
      static_cast<const int32_t*>(op.targets.as<int32_t>()), op.combined.as<ExactStats>(),
      op.losses.as<float>());
}

void DeviceKernels::RunExact(const ops::CrossEntropyBackward& op) {
  const Operation here(*this, "CrossEntropyBackward", op.combined, op.targets, op.logits);
  const ExactCrossEntropyGradient body = {op.combined.as<ExactStats>(),
                                          AsRows<float>(op.logits),
                                          op.valid,
                                          op.targets.as<int32_t>(),
                                          op.first_id,
                                          static_cast<float>(op.grad_scale)};
  LaunchForEach(stream(), body.logits.rows, body.logits.columns, body, body.logits);
}

void DeviceKernels::RunExact(const ops::CrossEntropyGradient& op) { Backend::Run(op); }

}  // namespace tessera::cuda
