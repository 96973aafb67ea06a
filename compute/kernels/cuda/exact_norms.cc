// LayerNorm, RMSNorm and sums over rows in EXACT numerics. R rows, C columns. norms.cc has the
// formulas.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/exact_math.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

struct ExactNorm {
  Rows<float> x;
  const float* weight;
  const float* bias;  // null, as means, where rows are not centered
  float epsilon;
  Rows<float> out;
  float* means;
  float* rstds;
};

template <bool kCenters>
TESSERA_KERNEL void ExactNormForward(ExactNorm op) {
  const int64_t row = exact::OwnRow(), columns = op.x.columns;
  if (row >= op.x.rows) return;
  const float* const x = op.x.At(row, 0);
  const float count = static_cast<float>(columns);
  float mean = 0;
  if constexpr (kCenters) {
    mean = exact::SumInLanes(0, columns, [&](int64_t i, float sum) { return sum + x[i]; }) / count;
  }
  const float squares = exact::SumInLanes(0, columns, [&](int64_t i, float sum) {
    const float centered = kCenters ? x[i] - mean : x[i];
    return exact::MulAdd(centered, centered, sum);
  });
  const float rstd = 1.0f / sqrtf(squares / count + op.epsilon);
  for (int64_t i = exact::LaneOfRow(); i < columns; i += exact::kLanes) {
    float* const out = op.out.At(row, i);
    if constexpr (kCenters) {
      *out = exact::MulAdd((x[i] - mean) * rstd, op.weight[i], op.bias[i]);
    } else {
      *out = x[i] * rstd * op.weight[i];
    }
  }
  if (exact::LaneOfRow() != 0) return;
  if constexpr (kCenters) op.means[row] = mean;
  op.rstds[row] = rstd;
}

template <bool kCenters>
struct ExactNormGradient {
  Rows<float> d_out, x;
  const float* weight;
  const float* means;
  const float* rstds;
  Rows<float> d_x;
  bool accumulate_dx;

  TESSERA_DEVICE float Normalized(int64_t row, int64_t column) const {
    const float value = *x.At(row, column);
    return (kCenters ? value - means[row] : value) * rstds[row];
  }
  // Adds a row's part of the gradient of the weight, and of the bias.
  TESSERA_DEVICE void AddRow(int64_t row, int64_t column, float* sums) const {
    const float dy = *d_out.At(row, column);
    sums[0] = exact::MulAdd(dy, Normalized(row, column), sums[0]);
    if constexpr (kCenters) sums[1] += dy;
  }
};

template <bool kCenters>
TESSERA_KERNEL void ExactNormBackward(ExactNormGradient<kCenters> op) {
  const int64_t row = exact::OwnRow(), columns = op.x.columns;
  if (row >= op.x.rows) return;
  const float* const dy = op.d_out.At(row, 0);
  const float count = static_cast<float>(columns);
  const auto g = [&](int64_t i) { return dy[i] * op.weight[i]; };
  float mean_g = 0;
  if constexpr (kCenters) {
    mean_g =
        exact::SumInLanes(0, columns, [&](int64_t i, float sum) { return sum + g(i); }) / count;
  }
  const float mean_gn = exact::SumInLanes(0, columns,
                                          [&](int64_t i, float sum) {
                                            return exact::MulAdd(g(i), op.Normalized(row, i), sum);
                                          }) /
                        count;
  for (int64_t i = exact::LaneOfRow(); i < columns; i += exact::kLanes) {
    const float n = op.Normalized(row, i), centered = kCenters ? g(i) - mean_g : g(i);
    const float gradient = op.rstds[row] * exact::NegMulAdd(n, mean_gn, centered);
    float* const to = op.d_x.At(row, i);
    *to = op.accumulate_dx ? gradient + *to : gradient;
  }
}

// Sums over rows, by column: blocks of rows, each in ascending order, then the blocks in ascending
// order.

constexpr int kExactColumnThreads = 128;

// The rows of x, for SumRows.
struct ExactRowSum {
  Rows<float> x;

  TESSERA_DEVICE void AddRow(int64_t row, int64_t column, float* sums) const {
    sums[0] += *x.At(row, column);
  }
};

// partials[block][quantity][column] = the sum of a block of rows.
template <int kQuantities, typename Term>
TESSERA_KERNEL void SumRowBlocks(Term term, int64_t rows, int64_t rows_per_block, int64_t columns,
                                 float* partials) {
  const int64_t column = simt::BlockX() * kExactColumnThreads + simt::ThreadIndex();
  if (column >= columns) return;
  const int64_t block = simt::BlockY(), behind = (block + 1) * rows_per_block;
  float sums[kQuantities] = {};
  for (int64_t row = block * rows_per_block; row < rows && row < behind; ++row) {
    term.AddRow(row, column, sums);
  }
  for (int q = 0; q < kQuantities; ++q) {
    partials[(block * kQuantities + q) * columns + column] = sums[q];
  }
}

// Runs one thread per column of a quantity, whose partial sums are `stride` apart.
TESSERA_KERNEL void AddRowBlocks(const float* partials, int64_t blocks, int64_t stride,
                                 int64_t columns, bool accumulate, float* out) {
  const int64_t column = simt::BlockX() * kExactColumnThreads + simt::ThreadIndex();
  if (column >= columns) return;
  float total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += partials[block * stride + column];
  out[column] = accumulate ? out[column] + total : total;
}

struct RowBlocks {
  int64_t rows, per_block, columns;

  int64_t blocks() const { return simt::BlocksOf(rows, per_block); }
};

// Sets outputs[q] to the sum of quantity q over all rows (+ itself when accumulate).
template <int kQuantities, typename Term>
void LaunchRowSums(simt::Stream stream, const Term& term, const RowBlocks& x, float* partials,
                   bool accumulate, float* const (&outputs)[kQuantities]) {
  const int64_t grid = simt::BlocksOf(x.columns, kExactColumnThreads);
  simt::Launch<SumRowBlocks<kQuantities, Term>>({grid, x.blocks()}, kExactColumnThreads, 0, stream,
                                                term, x.rows, x.per_block, x.columns, partials);
  for (int q = 0; q < kQuantities; ++q) {
    simt::Launch<AddRowBlocks>({grid}, kExactColumnThreads, 0, stream,
                               static_cast<const float*>(partials + q * x.columns), x.blocks(),
                               kQuantities * x.columns, x.columns, accumulate, outputs[q]);
  }
}

// Returns the blocks in which a norm's gradients are summed: at most 64.
RowBlocks NormBlocks(const Rows<float>& x) {
  return {x.rows, std::max<int64_t>(16, simt::BlocksOf(x.rows, 64)), x.columns};
}

template <bool kCenters, typename Op>
ExactNormGradient<kCenters> ExactGradientOf(const Op& op, const float* means) {
  return {.d_out = AsRows<float>(op.d_out),
          .x = AsRows<float>(op.x),
          .weight = op.weight.template as<float>(),
          .means = means,
          .rstds = op.rstd.template as<float>(),
          .d_x = AsRows<float>(op.d_x),
          .accumulate_dx = op.accumulate_dx};
}

template <typename Op>
ExactNorm ExactNormOf(const Op& op, const float* bias, float* means) {
  return {.x = AsRows<float>(op.x),
          .weight = op.weight.template as<float>(),
          .bias = bias,
          .epsilon = static_cast<float>(op.epsilon),
          .out = AsRows<float>(op.out),
          .means = means,
          .rstds = op.rstd.template as<float>()};
}

}  // namespace

void DeviceKernels::RunExact(const ops::LayerNormForward& op) {
  const Operation here(*this, "LayerNormForward", op.x, op.out);
  const ExactNorm norm = ExactNormOf(op, op.bias.as<float>(), op.mean.as<float>());
  simt::Launch<ExactNormForward<true>>(exact::RowGrid(norm.x.rows), exact::kRowThreads, 0, stream(),
                                       norm);
}

void DeviceKernels::RunExact(const ops::RmsNormForward& op) {
  const Operation here(*this, "RmsNormForward", op.x, op.out);
  const ExactNorm norm = ExactNormOf(op, nullptr, nullptr);
  simt::Launch<ExactNormForward<false>>(exact::RowGrid(norm.x.rows), exact::kRowThreads, 0,
                                        stream(), norm);
}

void DeviceKernels::RunExact(const ops::AddLayerNormForward& op) { Backend::Run(op); }
void DeviceKernels::RunExact(const ops::AddRmsNormForward& op) { Backend::Run(op); }

void DeviceKernels::RunExact(const ops::LayerNormBackward& op) {
  const Operation here(*this, "LayerNormBackward", op.d_out, op.x, op.weight, op.mean);
  const auto norm = ExactGradientOf<true>(op, op.mean.as<float>());
  const RowBlocks rows = NormBlocks(norm.x);
  float* const partials = Scratch<float>(rows.blocks() * 2 * rows.columns);
  if (partials == nullptr) return;
  simt::Launch<ExactNormBackward<true>>(exact::RowGrid(rows.rows), exact::kRowThreads, 0, stream(),
                                        norm);
  LaunchRowSums<2>(stream(), norm, rows, partials, op.accumulate,
                   {op.d_weight.as<float>(), op.d_bias.as<float>()});
}

void DeviceKernels::RunExact(const ops::RmsNormBackward& op) {
  const Operation here(*this, "RmsNormBackward", op.d_out, op.x, op.weight, op.rstd);
  const auto norm = ExactGradientOf<false>(op, nullptr);
  const RowBlocks rows = NormBlocks(norm.x);
  float* const partials = Scratch<float>(rows.blocks() * rows.columns);
  if (partials == nullptr) return;
  simt::Launch<ExactNormBackward<false>>(exact::RowGrid(rows.rows), exact::kRowThreads, 0, stream(),
                                         norm);
  LaunchRowSums<1>(stream(), norm, rows, partials, op.accumulate, {op.d_weight.as<float>()});
}

void DeviceKernels::RunExact(const ops::SumRows& op) {
  const Operation here(*this, "SumRows", op.x, op.out);
  const ExactRowSum term = {AsRows<float>(op.x)};
  const RowBlocks rows = {term.x.rows, 64, term.x.columns};
  float* const partials = Scratch<float>(rows.blocks() * rows.columns);
  if (partials == nullptr) return;
  LaunchRowSums<1>(stream(), term, rows, partials, op.accumulate, {op.out.as<float>()});
}

}  // namespace tessera::cuda
