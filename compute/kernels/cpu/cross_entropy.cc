// Softmax cross-entropy over a vocabulary that may be split: R rows, V local columns, S shards.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/cross_entropy.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// Number of fp32 terms after which a sum is added to an fp64 one, because a vocabulary is long.
constexpr int64_t kRunColumns = 4096;

template <typename T>
float MaxOf(const T* logits, int64_t count) {
  F32x16 max = -kInfinity;
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) max = Max(Load(logits + i), max);
  float result = ReduceMax(max);
  for (int64_t i = whole; i < count; ++i) result = std::max(result, static_cast<float>(logits[i]));
  return result;
}

template <typename T>
float SumExp(const T* logits, int64_t count, float max) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRunColumns) {
    const int64_t end = std::min(count, begin + kRunColumns);
    F32x16 sum = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) sum += Exp(Load(logits + i) - max);
    total += ReduceSum(sum);
    if (i < end) {
      float lanes[kLanes];
      Store(Exp(LoadPart(logits + i, end - i) - max), lanes);
      for (int64_t lane = 0; lane < end - i; ++lane) total += lanes[lane];
    }
  }
  return static_cast<float>(total);
}

// Computes a row's maximum, its sum of exp(logit - maximum), and the target's logit if the target
// is one of these columns.
template <typename T>
void StatsRow(const T* logits, int64_t valid, int64_t target, float* stats) {
  const float max = MaxOf(logits, valid);
  stats[0] = max;
  stats[1] = max == -kInfinity ? 0 : SumExp(logits, valid, max);
  stats[2] = target >= 0 && target < valid ? static_cast<float>(logits[target]) : 0;
}

// One row of stats, as laid out in memory.
struct Stats {
  float max;
  float sum;  // of exp(logit - max)
  float target;
};

Stats Combine(const Stats& a, const Stats& b) {
  const float max = std::max(a.max, b.max);
  if (max == -kInfinity) return {max, 0, a.target + b.target};
  return {max, a.sum * First(Exp(a.max - max)) + b.sum * First(Exp(b.max - max)),
          a.target + b.target};
}

// Combines shards [begin, end) of one row in a binary tree, whose cuts are at powers of two.
Stats CombineShards(const Stats* stats, int64_t rows, int64_t row, int64_t begin, int64_t end) {
  if (end - begin == 1) return stats[begin * rows + row];
  int64_t half = 1;
  while (2 * half < end - begin) half *= 2;
  return Combine(CombineShards(stats, rows, row, begin, begin + half),
                 CombineShards(stats, rows, row, begin + half, end));
}

// Combines the stats of all shards, [shards, rows], to losses.
void LossRows(const float* stats, int64_t shards, int64_t rows, const int32_t* targets,
              float* combined, float* losses) {
  for (int64_t row = 0; row < rows; ++row) {
    const Stats total = CombineShards(reinterpret_cast<const Stats*>(stats), rows, row, 0, shards);
    reinterpret_cast<Stats*>(combined)[row] = total;
    losses[row] = targets[row] < 0 ? 0 : First(Log(total.sum)) + total.max - total.target;
  }
}

template <typename T>
void BackwardRow(T* logits, int64_t columns, int64_t valid, int64_t target, float max, float sum,
                 float scale) {
  const float factor = scale / sum;
  float at_target = 0;
  const bool local = target >= 0 && target < valid;
  if (local) {
    const float exp = First(Exp(static_cast<float>(logits[target]) - max));
    at_target = exp * factor - scale;
  }
  ForLanes(valid, [&](int64_t i, auto load, auto store)
                      HWY_ATTR { store(Exp(load(logits + i) - max) * factor, logits + i); });
  if (local) logits[target] = static_cast<T>(at_target);
  std::memset(static_cast<void*>(logits + valid), 0, (columns - valid) * sizeof(T));
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

void CpuBackend::Run(const ops::CrossEntropyStats& op) {
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.logits);
    const auto stats_row = TESSERA_CHOOSE(StatsRow<T>);
    pool_.ParallelFor(rows.rows, [&](int64_t row, int) {
      stats_row(rows.row(row), op.valid, op.targets.as<int32_t>()[row] - op.first_id,
                op.stats.as<float>() + 3 * row);
    });
  });
}

void CpuBackend::Run(const ops::CrossEntropyLoss& op) {
  const int64_t shards = op.stats.dim(0), rows = op.stats.dim(1);
  const auto loss_rows = TESSERA_CHOOSE(LossRows);
  loss_rows(op.stats.as<float>(), shards, rows, op.targets.as<int32_t>(), op.combined.as<float>(),
            op.losses.as<float>());
}

void CpuBackend::Run(const ops::CrossEntropyBackward& op) {
  WithType(op.logits.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(op.logits);
    const auto backward_row = TESSERA_CHOOSE(BackwardRow<T>);
    pool_.ParallelFor(rows.rows, [&](int64_t row, int) {
      const int64_t target = op.targets.as<int32_t>()[row];
      if (target < 0) {
        std::memset(static_cast<void*>(rows.row(row)), 0, rows.columns * sizeof(T));
        return;
      }
      const float* stats = op.combined.as<float>() + 3 * row;
      backward_row(rows.row(row), rows.columns, op.valid, target - op.first_id, stats[0], stats[1],
                   static_cast<float>(op.grad_scale));
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
