// LayerNorm and RMSNorm. R rows, C columns.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/norms.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/checked_math.h"
#include "base/dispatch.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

void CombineRange(const float* sums, int64_t blocks, int64_t stride, int64_t count, bool accumulate,
                  float* out) {
  ForLanes(count, [&](int64_t i, auto load, auto store) HWY_ATTR {
    F32x16 total = {};
    for (int64_t block = 0; block < blocks; ++block) total += load(sums + block * stride + i);
    store(accumulate ? load(out + i) + total : total, out + i);
  });
}

// y = (x - mean) * rstd * weight + bias, by row. R rows, C columns.
// With g = d_y * weight and n = (x - mean) * rstd:  d_x = rstd * (g - mean(g) - n * mean(g * n)),
// d_weight = sum over rows of d_y * n, d_bias = sum over rows of d_y.

// 1 in the first `count` lanes, 0 in the others.
TESSERA_INLINE F32x16 LanesBelow(int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = 1;
  return Load(lanes);
}

template <typename T>
void LayerNormForwardRow(const T* x, const T* weight, const T* bias, int64_t columns, float epsilon,
                         T* out, float* mean_out, float* rstd_out) {
  F32x16 sum = {};
  ForLanes(columns, [&](int64_t i, auto load, auto) HWY_ATTR { sum += load(x + i); });
  const float mean = ReduceSum(sum) / static_cast<float>(columns);
  F32x16 squares = {};
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 centered = Load(x + i) - mean;
    squares = MulAdd(centered, centered, squares);
  }
  if (whole < columns) {
    // Lanes past the end count as the mean.
    const F32x16 centered =
        (LoadPart(x + whole, columns - whole) - mean) * LanesBelow(columns - whole);
    squares = MulAdd(centered, centered, squares);
  }
  const float rstd = 1.0f / std::sqrt(ReduceSum(squares) / static_cast<float>(columns) + epsilon);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = (load(x + i) - mean) * rstd;
    store(MulAdd(n, load(weight + i), load(bias + i)), out + i);
  });
  *mean_out = mean;
  *rstd_out = rstd;
}

template <typename T>
void LayerNormBackwardRow(const T* d_out, const T* x, const T* weight, int64_t columns, float mean,
                          float rstd, T* d_x, bool accumulate, float* d_weight, float* d_bias) {
  F32x16 sum_g = {}, sum_gn = {};
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 dy = load(d_out + i);
    const F32x16 n = (load(x + i) - mean) * rstd;
    const F32x16 g = dy * load(weight + i);  // zero in lanes past the end
    sum_g += g;
    sum_gn = MulAdd(g, n, sum_gn);
    store(MulAdd(dy, n, load(d_weight + i)), d_weight + i);
    store(load(d_bias + i) + dy, d_bias + i);
  });
  const float mean_g = ReduceSum(sum_g) / static_cast<float>(columns);
  const float mean_gn = ReduceSum(sum_gn) / static_cast<float>(columns);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = (load(x + i) - mean) * rstd;
    const F32x16 g = load(d_out + i) * load(weight + i);
    F32x16 result = rstd * NegMulAdd(n, mean_gn, g - mean_g);
    if (accumulate) result += load(d_x + i);
    store(result, d_x + i);
  });
}

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by row. R rows, C columns.
// With g = d_y * weight and n = x * rstd:  d_x = rstd * (g - n * mean(g * n)), d_weight = sum over
// rows of d_y * n.

template <typename T>
void RmsNormForwardRow(const T* x, const T* weight, int64_t columns, float epsilon, T* out,
                       float* rstd_out) {
  F32x16 squares = {};
  ForLanes(columns, [&](int64_t i, auto load, auto) HWY_ATTR {
    const F32x16 value = load(x + i);
    squares = MulAdd(value, value, squares);
  });
  const float rstd = 1.0f / std::sqrt(ReduceSum(squares) / static_cast<float>(columns) + epsilon);
  ForLanes(columns, [&](int64_t i, auto load, auto store)
                        HWY_ATTR { store(load(x + i) * rstd * load(weight + i), out + i); });
  *rstd_out = rstd;
}

template <typename T>
void RmsNormBackwardRow(const T* d_out, const T* x, const T* weight, int64_t columns, float rstd,
                        T* d_x, bool accumulate, float* d_weight) {
  F32x16 sum_gn = {};
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 dy = load(d_out + i);
    const F32x16 n = load(x + i) * rstd;
    sum_gn = MulAdd(dy * load(weight + i), n, sum_gn);
    store(MulAdd(dy, n, load(d_weight + i)), d_weight + i);
  });
  const float mean_gn = ReduceSum(sum_gn) / static_cast<float>(columns);
  ForLanes(columns, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 n = load(x + i) * rstd;
    const F32x16 g = load(d_out + i) * load(weight + i);
    F32x16 result = rstd * NegMulAdd(n, mean_gn, g);
    if (accumulate) result += load(d_x + i);
    store(result, d_x + i);
  });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

constexpr int64_t kNormForwardRows = 16;

// sum = a + b, row by row, so that a norm finds the row of the sum in the cache.
template <typename T>
class RowSums {
 public:
  RowSums(const TensorView& a, const TensorView& b, const TensorView& sum)
      : a_(AsRows<T>(a)), b_(AsRows<T>(b)), sum_(AsRows<T>(sum)) {}

  int64_t rows() const { return sum_.rows; }
  int64_t columns() const { return sum_.columns; }
  // Adds by AddRange() and returns the row of the sum.
  template <typename AddRange>
  const T* Add(AddRange add_range, int64_t row) const {
    add_range(a_.row(row), b_.row(row), sum_.columns, sum_.row(row));
    return sum_.row(row);
  }

 private:
  Rows<T> a_, b_, sum_;
};

// Sums over rows of several quantities of `columns` values each: one partial sum per block of rows,
// then a sum over the blocks in order.
class NormPartials {
 public:
  NormPartials(int64_t rows, int64_t columns, int64_t quantities)
      : rows_(rows), columns_(columns), quantities_(quantities) {}

  // Returns at least 16, so that there are few partial sums compared with rows.
  int64_t rows_per_block() const { return std::max<int64_t>(16, (rows_ + 63) / 64); }
  int64_t blocks() const { return CeilDivide(rows_, rows_per_block()); }
  int64_t count() const { return std::max<int64_t>(1, blocks() * quantities_ * columns_); }

  // Returns the zeroed sums of the block whose first row is `begin`: [quantities, columns].
  float* Clear(float* sums, int64_t begin) const {
    float* part = sums + begin / rows_per_block() * quantities_ * columns_;
    std::memset(part, 0, quantities_ * columns_ * sizeof(float));
    return part;
  }

  // out = the sum of one quantity over the blocks (+ out when accumulate).
  void Combine(ThreadPool& pool, const float* sums, int64_t quantity, float* out,
               bool accumulate) const;

 private:
  int64_t rows_;
  int64_t columns_;
  int64_t quantities_;
};

void NormPartials::Combine(ThreadPool& pool, const float* sums, int64_t quantity, float* out,
                           bool accumulate) const {
  const auto combine_range = TESSERA_CHOOSE(CombineRange);
  ForRanges(pool, columns_, 16 * kStripColumns, [&](int64_t begin, int64_t end, int) {
    combine_range(sums + quantity * columns_ + begin, blocks(), quantities_ * columns_, end - begin,
                  accumulate, out + begin);
  });
}

}  // namespace

void CpuBackend::Run(const ops::LayerNormForward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.x), to = AsRows<T>(op.out);
    const auto forward_row = TESSERA_CHOOSE(LayerNormForwardRow<T>);
    ForRanges(pool_, from.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(from.row(row), op.weight.as<T>(), op.bias.as<T>(), from.columns,
                    static_cast<float>(op.epsilon), to.row(row), op.mean.as<float>() + row,
                    op.rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::Run(const ops::AddLayerNormForward& op) {
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    const RowSums<T> x(op.a, op.b, op.sum);
    const Rows<T> to = AsRows<T>(op.out);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    const auto forward_row = TESSERA_CHOOSE(LayerNormForwardRow<T>);
    ForRanges(pool_, to.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(x.Add(add_range, row), op.weight.as<T>(), op.bias.as<T>(), to.columns,
                    static_cast<float>(op.epsilon), to.row(row), op.mean.as<float>() + row,
                    op.rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::Run(const ops::LayerNormBackward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(op.d_out), input = AsRows<T>(op.x), dx = AsRows<T>(op.d_x);
    const int64_t columns = input.columns;
    const NormPartials partials(input.rows, columns, 2);
    float* sums = workspace_.Shared<float>(partials.count());
    const auto backward_row = TESSERA_CHOOSE(LayerNormBackwardRow<T>);
    ForRanges(pool_, input.rows, partials.rows_per_block(), [&](int64_t begin, int64_t end, int) {
      float* d_weight_part = partials.Clear(sums, begin);
      float* d_bias_part = d_weight_part + columns;
      for (int64_t row = begin; row < end; ++row) {
        backward_row(dy.row(row), input.row(row), op.weight.as<T>(), columns,
                     op.mean.as<float>()[row], op.rstd.as<float>()[row], dx.row(row),
                     op.accumulate_dx, d_weight_part, d_bias_part);
      }
    });
    partials.Combine(pool_, sums, 0, op.d_weight.as<float>(), op.accumulate);
    partials.Combine(pool_, sums, 1, op.d_bias.as<float>(), op.accumulate);
  });
}

void CpuBackend::Run(const ops::RmsNormForward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> from = AsRows<T>(op.x), to = AsRows<T>(op.out);
    const auto forward_row = TESSERA_CHOOSE(RmsNormForwardRow<T>);
    ForRanges(pool_, from.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(from.row(row), op.weight.as<T>(), from.columns, static_cast<float>(op.epsilon),
                    to.row(row), op.rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::Run(const ops::AddRmsNormForward& op) {
  WithType(op.sum.dtype(), [&]<typename T>(T) {
    const RowSums<T> x(op.a, op.b, op.sum);
    const Rows<T> to = AsRows<T>(op.out);
    const auto add_range = TESSERA_CHOOSE(AddRange<T, T, T>);
    const auto forward_row = TESSERA_CHOOSE(RmsNormForwardRow<T>);
    ForRanges(pool_, to.rows, kNormForwardRows, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        forward_row(x.Add(add_range, row), op.weight.as<T>(), to.columns,
                    static_cast<float>(op.epsilon), to.row(row), op.rstd.as<float>() + row);
      }
    });
  });
}

void CpuBackend::Run(const ops::RmsNormBackward& op) {
  WithType(op.x.dtype(), [&]<typename T>(T) {
    const Rows<T> dy = AsRows<T>(op.d_out), input = AsRows<T>(op.x), dx = AsRows<T>(op.d_x);
    const int64_t columns = input.columns;
    const NormPartials partials(input.rows, columns, 1);
    float* sums = workspace_.Shared<float>(partials.count());
    const auto backward_row = TESSERA_CHOOSE(RmsNormBackwardRow<T>);
    ForRanges(pool_, input.rows, partials.rows_per_block(), [&](int64_t begin, int64_t end, int) {
      float* d_weight_part = partials.Clear(sums, begin);
      for (int64_t row = begin; row < end; ++row) {
        backward_row(dy.row(row), input.row(row), op.weight.as<T>(), columns,
                     op.rstd.as<float>()[row], dx.row(row), op.accumulate_dx, d_weight_part);
      }
    });
    partials.Combine(pool_, sums, 0, op.d_weight.as<float>(), op.accumulate);
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
