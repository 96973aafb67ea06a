// Softmax cross-entropy over a vocabulary that may be split: R rows, V local columns, S shards.

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Of fp32 sums, after which they go to fp64: a vocabulary is long.
constexpr int64_t kRunColumns = 4096;

struct Stats {
  float max;
  float sum;  // of exp(logit - max)
  float target;
};

template <typename T>
float MaxOf(const T* logits, int64_t count) {
  F32x16 max = Splat(-kInfinity);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) max = Max(Load(logits + i), max);
  float result = ReduceMax(max);
  for (int64_t i = whole; i < count; ++i) {
    result = std::max(result, static_cast<float>(logits[i]));
  }
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

Stats Combine(const Stats& a, const Stats& b) {
  const float max = std::max(a.max, b.max);
  if (max == -kInfinity) return {max, 0, a.target + b.target};
  return {max, a.sum * std::exp(a.max - max) + b.sum * std::exp(b.max - max), a.target + b.target};
}

// Shards [begin, end) of one row in a binary tree, whose cuts are at powers of two.
Stats CombineShards(const Stats* stats, int64_t rows, int64_t row, int64_t begin, int64_t end) {
  if (end - begin == 1) return stats[begin * rows + row];
  int64_t half = 1;
  while (2 * half < end - begin) half *= 2;
  return Combine(CombineShards(stats, rows, row, begin, begin + half),
                 CombineShards(stats, rows, row, begin + half, end));
}

template <typename T>
void BackwardRow(T* logits, int64_t columns, int64_t valid, int64_t target, const Stats& stats,
                 float scale) {
  const float factor = scale / stats.sum;
  float at_target = 0;
  const bool local = target >= 0 && target < valid;
  if (local) {
    const F32x16 x = Splat(static_cast<float>(logits[target]) - stats.max);
    at_target = Exp(x)[0] * factor - scale;
  }
  const float max = stats.max;
  ForLanesFlushed(0, valid, [&](int64_t i, auto load, auto store) {
    store(Exp(load(logits + i) - max) * factor, logits + i);
  });
  if (local) logits[target] = static_cast<T>(at_target);
  std::memset(static_cast<void*>(logits + valid), 0, (columns - valid) * sizeof(T));
}

}  // namespace

void CpuBackend::CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets,
                                   int64_t first_id, TensorView stats) {
  CHECK(targets.dtype() == DType::kI32 && targets.contiguous());
  CHECK(stats.dtype() == DType::kF32 && stats.contiguous());
  WithType(logits.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(logits);
    CHECK(valid >= 0 && valid <= rows.columns) << valid;
    CHECK(targets.elements() == rows.rows && stats.elements() == 3 * rows.rows);
    Stats* out = stats.as<Stats>();
    pool_.ParallelFor(rows.rows, [&](int64_t row, int) {
      const T* x = rows.row(row);
      const float max = MaxOf(x, valid);
      const int64_t target = targets.as<int32_t>()[row] - first_id;
      const bool local = target >= 0 && target < valid;
      out[row] = {max, max == -kInfinity ? 0 : SumExp(x, valid, max),
                  local ? static_cast<float>(x[target]) : 0};
    });
  });
}

void CpuBackend::CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                                  TensorView losses) {
  CHECK(stats.rank() == 3 && stats.contiguous() && stats.dim(2) == 3) << ToString(stats.shape());
  CHECK(combined.contiguous() && losses.contiguous() && targets.contiguous());
  CHECK(stats.dtype() == DType::kF32 && combined.dtype() == DType::kF32);
  CHECK(losses.dtype() == DType::kF32 && targets.dtype() == DType::kI32);
  const int64_t shards = stats.dim(0), rows = stats.dim(1);
  CHECK(shards >= 1 && combined.elements() == 3 * rows);
  CHECK(losses.elements() == rows && targets.elements() == rows);
  for (int64_t row = 0; row < rows; ++row) {
    const Stats total = CombineShards(stats.as<Stats>(), rows, row, 0, shards);
    combined.as<Stats>()[row] = total;
    losses.as<float>()[row] =
        targets.as<int32_t>()[row] < 0 ? 0 : std::log(total.sum) + total.max - total.target;
  }
}

void CpuBackend::CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                                      int64_t first_id, double grad_scale, TensorView logits) {
  CHECK(combined.dtype() == DType::kF32 && combined.contiguous());
  CHECK(targets.dtype() == DType::kI32 && targets.contiguous());
  WithType(logits.dtype(), [&]<typename T>(T) {
    const Rows<T> rows = AsRows<T>(logits);
    CHECK(valid >= 0 && valid <= rows.columns) << valid;
    CHECK(targets.elements() == rows.rows && combined.elements() == 3 * rows.rows);
    pool_.ParallelFor(rows.rows, [&](int64_t row, int) {
      const int64_t target = targets.as<int32_t>()[row];
      if (target < 0) {
        std::memset(static_cast<void*>(rows.row(row)), 0, rows.columns * sizeof(T));
        return;
      }
      BackwardRow(rows.row(row), rows.columns, valid, target - first_id, combined.as<Stats>()[row],
                  static_cast<float>(grad_scale));
    });
  });
}

}  // namespace tessera
