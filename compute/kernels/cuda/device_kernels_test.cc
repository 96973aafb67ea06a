// What the suites of every backend do not cover: the bits of the CPU, the arithmetic of indices
// beyond 32 bits, and empty operands.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/testing/simt_host.h"
#include "compute/kernels/cuda/testing/simulated_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using testing::At;
using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

class DeviceKernelsTest : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }

  testing::RandomTensors random_{20261122};
  std::unique_ptr<Backend> device_ = MakeSimulatedBackend();
  std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
};

// Sums in the order of rows, dropout masks, and the optimizer are the same on CPU and GPU.
TEST_P(DeviceKernelsTest, SameBitsAsTheCpu) {
  const int64_t rows = 70, columns = 133, ids = 9;
  const Tensor d_out = random_.Normal(dtype(), {rows, columns}), id = random_.Ids({rows}, 0, 12);
  // Most rows have one id, whose list is not sorted by comparing all pairs.
  for (int64_t row = 0; row < 40; ++row) id.view().as<int32_t>()[row] = 3;
  const Tensor start = random_.Normal(DType::kF32, {ids, columns});
  const Tensor grad = random_.Normal(DType::kF32, {1003}),
               weight = random_.Normal(DType::kF32, {1003});
  const Tensor m = random_.Normal(DType::kF32, {1003});
  const Tensor v = random_.Uniform(DType::kF32, {1003}, 0, 1);
  const Dropout dropout = {.probability = 0.4,
                           .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 17},
                           .first_sample = 5,
                           .rows_per_sample = 7,
                           .row_offset = 3,
                           .global_columns = 200,
                           .column_offset = 5};
  std::vector<std::vector<Tensor>> results(2);
  for (int i = 0; i < 2; ++i) {
    Backend& backend = i == 0 ? *device_ : *cpu_;
    std::vector<Tensor>& result = results[i];
    result.push_back(Cloned(start));
    backend.EmbeddingBackward({d_out, id, 2, result.back()});
    result.push_back(Cloned(d_out));
    backend.ApplyDropout({dropout, result.back()});
    for (const Tensor* x : {&weight, &m, &v}) result.push_back(Cloned(*x));
    result.push_back(Converted(weight, dtype()));
    backend.AdamW({{.learning_rate = 1e-2, .weight_decay = 0.1, .step = 7, .grad_scale = 0.5},
                   grad,
                   result[2],
                   result[3],
                   result[4],
                   result[5]});
  }
  ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
  const char* const names[] = {"d_table", "dropout", "master", "m", "v", "param"};
  for (int i = 0; i < 6; ++i) ExpectBitwiseEqual(results[0][i], results[1][i], names[i]);
}

// Every row has the same token: sorting takes a pass over all rows, of few steps that wait for each
// other, and does not compare all pairs.
TEST_P(DeviceKernelsTest, ARepeatedTokenIsSortedInOnePass) {
  constexpr int64_t kRows = 3000, kIds = 9000;
  const Tensor d_out = random_.Normal(dtype(), {kRows, 1}), id = random_.Ids({kRows}, 1, 2);
  const Tensor few(DType::kF32, {2, 1});
  simt::TakeCounters();
  device_->EmbeddingBackward({d_out, id, 0, few});
  const simt::Counters counters = simt::TakeCounters();
  EXPECT_LT(counters.global_accesses, 300 * kRows);
  EXPECT_LE(counters.barriers, 2 + 2 * 3);
  // Lists that begin in each of the scan's steps.
  for (int64_t row = 0; row < kRows; row += 10) id.view().as<int32_t>()[row] = 3 * row;
  const Tensor table(DType::kF32, {kIds, 1}), expected(DType::kF32, {kIds, 1});
  device_->EmbeddingBackward({d_out, id, 0, table});
  EXPECT_LE(simt::TakeCounters().barriers, 2 * 2 + 2 * 3);
  cpu_->EmbeddingBackward({d_out, id, 0, expected});
  ExpectBitwiseEqual(table, expected);
}

// Kernels over rows read each element once. Add() is the measure: three accesses of an element. The
// simulated device counts those of several bytes as one where the compiler joins them.
TEST_P(DeviceKernelsTest, RowsAreReadOnce) {
  const Shape shape = {32, 768};
  const auto matrix = [&] { return random_.Normal(dtype(), shape); };
  const Tensor a = matrix(), b = matrix(), sum = matrix(), out = matrix();
  const Tensor weight = random_.Normal(dtype(), {768}), means(DType::kF32, {32});
  const Tensor rstds = random_.Uniform(DType::kF32, {32}, 1, 2), d_weight(DType::kF32, {768}),
               d_bias(DType::kF32, {768});
  const auto count = [](const auto& run) {
    simt::TakeCounters();
    run();
    return static_cast<double>(simt::TakeCounters().global_accesses);
  };
  const double operand = count([&] { device_->Add({a, b, sum}); }) / 3;
  // The weight and the bias of a row count as two more.
  EXPECT_LT(count([&] {
              device_->AddLayerNormForward({a, b, sum, weight, weight, 1e-5, out, means, rstds});
            }),
            6.5 * operand);
  // Sums in fp32 of two quantities are written once for sixteen rows, and added.
  EXPECT_LT(count([&] {
              device_->LayerNormBackward(
                  {a, b, weight, means, rstds, out, true, d_weight, d_bias, false});
            }),
            8 * operand);
  // The loss and the gradient read what the gradient alone does.
  const Tensor targets = random_.Ids({32}, 0, 768), stats(DType::kF32, {1, 32, 3}),
               combined(DType::kF32, {32, 3});
  EXPECT_LT(count([&] {
              device_->CrossEntropyGradient({a, 768, targets, 1, stats, combined, means});
            }),
            count([&] {
              device_->CrossEntropyBackward({combined, targets, 768, 0, 1, b});
            }));
}

TEST_P(DeviceKernelsTest, EmptyOperands) {
  const Tensor none(dtype(), {0, 8}), statistic(DType::kF32, {0}), sums(DType::kF32, {8});
  const Tensor weight(dtype(), {8}), ids(DType::kI32, {0}), table(DType::kF32, {4, 8});
  const Tensor stats(DType::kF32, {1, 0, 3}), combined(DType::kF32, {0, 3});
  device_->Fill({sums, 1});
  device_->Fill({none, 1});
  device_->Copy({none, none});
  device_->Add({none, none, none});
  device_->Scale({none, 2});
  device_->GeluForward({none, none});
  device_->LayerNormForward({none, weight, weight, 1e-5, none, statistic, statistic});
  device_->EmbeddingBackward({none, ids, 0, table});
  device_->CrossEntropyStats({none, 8, ids, 0, stats.view().Reshape({0, 3})});
  device_->CrossEntropyLoss({stats, ids, combined, statistic});
  device_->CrossEntropyBackward({combined, ids, 8, 0, 1, none});
  device_->CrossEntropyGradient({none, 8, ids, 1, stats, combined, statistic});
  device_->SumRows({none, sums, /*accumulate=*/true});
  EXPECT_EQ(At(sums, {7}), 1);
  device_->SumRows({none, sums, /*accumulate=*/false});
  EXPECT_EQ(At(sums, {7}), 0);
  EXPECT_EQ(device_->SumOfSquares({none}), 0);
}

// The suites of every backend find races on global memory, because all kernels report what they
// access (simt.h).
TEST_P(DeviceKernelsTest, KernelsReportTheirAccesses) {
  const Tensor x = random_.Normal(dtype(), {4, 32}), out(dtype(), {4, 32});
  simt::TakeCounters();
  device_->GeluForward({x, out});
  EXPECT_GE(simt::TakeCounters().global_accesses, 2 * 4 * 32 * ElementSize(dtype()) / 16);
}

// As many launches as fit the tensors into their arguments, whatever these are.
TEST_P(DeviceKernelsTest, AFewLaunchesSumManyTensors) {
  const Tensor x = random_.Normal(dtype(), {130, 200});
  std::vector<TensorView> parts;
  for (int64_t i = 0; i < 130; ++i) {
    parts.push_back(x.view().Slice(0, i, i + 1).Reshape({200}).Slice(0, 0, 200 - i));
  }
  std::vector<double> sums(130);
  simt::TakeCounters();
  device_->SumsOfSquares({parts, 64, sums});
  EXPECT_EQ(simt::TakeCounters().launches, 2 * 2);
  for (int64_t i = 0; i < 130; i += 43) {
    double sum = 0;
    device_->SumsOfSquares({{&parts[i], 1}, 64, {&sum, 1}});
    EXPECT_EQ(sums[i], sum) << i;
  }
}

// Columns of a norm whose accumulators are in registers, in shared memory, or in global memory.
TEST_P(DeviceKernelsTest, WideNorms) {
  for (const int64_t columns : {1600, 7000, 24600}) {
    const int64_t rows = columns == 1600 ? 18 : 3;  // two runs of rows, or one
    const auto matrix = [&] { return random_.Normal(dtype(), {rows, columns}); };
    const Tensor x = matrix(), d_out = matrix(), before = matrix();
    const Tensor weight = random_.Normal(dtype(), {columns});
    std::vector<std::vector<Tensor>> results(2);
    for (int i = 0; i < 2; ++i) {
      Backend& backend = i == 0 ? *device_ : *cpu_;
      for (const bool centers : {false, true}) {
        const Tensor out(dtype(), {rows, columns}), d_x = Cloned(before);
        const Tensor mean(DType::kF32, {rows}), rstd(DType::kF32, {rows});
        const Tensor d_weight(DType::kF32, {columns}), d_bias(DType::kF32, {columns});
        if (centers) {
          backend.LayerNormForward({x, weight, weight, 1e-5, out, mean, rstd});
          backend.LayerNormBackward(
              {d_out, x, weight, mean, rstd, d_x, true, d_weight, d_bias, false});
        } else {
          backend.RmsNormForward({x, weight, 1e-5, out, rstd});
          backend.RmsNormBackward({d_out, x, weight, rstd, d_x, true, d_weight, false});
        }
        for (const Tensor* result : {&out, &d_x, &d_weight, &d_bias}) {
          results[i].push_back(Cloned(*result));
        }
      }
    }
    ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
    const double bound = dtype() == DType::kBF16 ? 0x1p-7 : 0x1p-18;
    for (size_t i = 0; i < results[0].size(); ++i) {
      ExpectClose(results[0][i], results[1][i], {.relative = bound, .of_maximum = bound});
    }
  }
}

TEST_P(DeviceKernelsTest, OneLaunchUpdatesManyParts) {
  constexpr int64_t kParts = 48;
  const Tensor grad = random_.Normal(DType::kF32, {kParts * 10}), param(dtype(), {kParts * 10});
  const Tensor master(DType::kF32, {kParts * 10}), m(DType::kF32, {kParts * 10}),
      v(DType::kF32, {kParts * 10});
  std::vector<AdamWOperands> parts;
  for (int64_t i = 0; i < kParts; ++i) {
    const auto part = [&](const TensorView& x) { return x.Slice(0, i * 10, i * 10 + 10); };
    parts.push_back({part(grad), part(master), part(m), part(v), part(param), 0.1});
  }
  simt::TakeCounters();
  device_->AdamWAll({{.learning_rate = 1e-2}, parts});
  EXPECT_EQ(simt::TakeCounters().launches, 1);
  EXPECT_EQ(device_->Synchronize(), absl::OkStatus());
}

// Heads whose elements lie more than 2^32 elements apart, along each dim in turn: the bits of the
// same operation on dense operands.
TEST_P(DeviceKernelsTest, AttentionBeyond32Bits) {
  const Shape shape = {2, 70, 2, 8};
  const AttentionOptions options = {.scale = 0.3};
  std::vector<Tensor> values;
  for (int i = 0; i < 4; ++i) values.push_back(random_.Normal(dtype(), shape));
  const auto run = [&](const std::vector<TensorView>& x, const TensorView& log_sum_exp) {
    device_->AttentionForward({options, x[0], x[1], x[2], x[4], log_sum_exp});
    device_->AttentionBackward(
        {options, x[3], x[0], x[1], x[2], x[4], log_sum_exp, x[5], x[6], x[7]});
    ASSERT_EQ(device_->Synchronize(), absl::OkStatus());
  };
  std::vector<Tensor> dense;
  std::vector<TensorView> operands;
  for (int i = 0; i < 8; ++i) {
    dense.push_back(i < 4 ? Cloned(values[static_cast<size_t>(i)]) : Tensor(dtype(), shape));
    operands.push_back(dense.back());
  }
  const Tensor expected(DType::kF32, {2, 2, 70}), log_sum_exp(DType::kF32, {2, 2, 70});
  run(operands, expected);
  for (int far = 0; far < 3; ++far) {
    std::vector<int64_t> strides = ContiguousStrides(shape);
    strides[static_cast<size_t>(far)] =
        ((int64_t{1} << 32) + 64) / (shape[static_cast<size_t>(far)] - 1) / 8 * 8 + 8;
    const int64_t span = (shape[static_cast<size_t>(far)] - 1) * strides[static_cast<size_t>(far)];
    // The operands lie beside each other between the gaps.
    const int64_t dense_elements = ElementCount(shape);
    const Tensor memory(dtype(), {span + 8 * dense_elements});
    std::vector<TensorView> apart;
    for (size_t i = 0; i < 8; ++i) {
      const int64_t begin = static_cast<int64_t>(i) * dense_elements;
      apart.emplace_back(memory.view().Slice(0, begin, begin + 1).data(), dtype(), shape, strides);
      if (i < 4) device_->Copy({values[i], apart.back()});
    }
    run(apart, log_sum_exp);
    ExpectBitwiseEqual(log_sum_exp, expected);
    for (size_t i = 4; i < 8; ++i) ExpectBitwiseEqual(apart[i], operands[i]);
  }
}

// The last query sees all keys, and its dropout mask is at elements beyond 2^32; only some blocks
// are run, backward for the shorter sequence.
TEST_P(DeviceKernelsTest, AttentionOverLongContexts) {
  constexpr int64_t kHeadSize = 8, kFirstHead = 100;
  const bool backward = dtype() == DType::kF32;
  const int64_t sequence = backward ? 8192 : 32768, last = sequence - 1;
  const Shape shape = {1, sequence, 1, kHeadSize};
  const AttentionOptions options = {
      .scale = 0.4,
      .dropout_probability = 0.25,
      .dropout_stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 17},
      .first_head = kFirstHead};
  const Tensor q = random_.Normal(dtype(), shape), k = random_.Normal(dtype(), shape);
  const Tensor v = random_.Normal(dtype(), shape), d_out = random_.Normal(dtype(), shape);
  const Tensor out(dtype(), shape), log_sum_exp(DType::kF32, {1, 1, sequence});
  const Tensor d_q(dtype(), shape), d_k(dtype(), shape), d_v(dtype(), shape);
  const std::unique_ptr<Backend> some = MakeSimulatedBackend({.sampled_blocks = 2});
  some->AttentionForward({options, q, k, v, out, log_sum_exp});
  if (backward) some->AttentionBackward({options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v});
  ASSERT_EQ(some->Synchronize(), absl::OkStatus());

  const auto dot = [&](const Tensor& a, int64_t t, const Tensor& b, int64_t s) {
    double sum = 0;
    for (int64_t d = 0; d < kHeadSize; ++d) sum += At(a, {0, t, 0, d}) * At(b, {0, s, 0, d});
    return sum;
  };
  const RandomStream mask = {3, RandomUse::kDropout, MixCoordinates(17, 0)};
  const double delta = dot(d_out, last, out, last);
  double sum = 0, sums[kHeadSize] = {}, d_q_sums[kHeadSize] = {};
  for (int64_t s = 0; s < sequence; ++s) {
    const double p = std::exp(0.4 * dot(q, last, k, s));
    const double kept = RandomUniform(mask, (kFirstHead * sequence + last) * sequence + s) >= 0.25;
    const double d_score = p * (kept / 0.75 * dot(d_out, last, v, s) - delta);
    sum += p;
    for (int64_t d = 0; d < kHeadSize; ++d) {
      sums[d] += p * kept / 0.75 * At(v, {0, s, 0, d});
      d_q_sums[d] += 0.4 * d_score * At(k, {0, s, 0, d});
    }
  }
  EXPECT_NEAR(At(log_sum_exp, {0, 0, last}), std::log(sum), 1e-5);
  for (int64_t d = 0; d < kHeadSize; ++d) {
    EXPECT_NEAR(At(out, {0, last, 0, d}), sums[d] / sum, backward ? 1e-6 : 4e-4);
    if (backward) EXPECT_NEAR(At(d_q, {0, last, 0, d}), d_q_sums[d] / sum, 1e-6);
  }
}

// Tensors with more than 2^32 elements, of which only some blocks are run; the memory of the others
// is never touched. The last block writes the last elements.
TEST_P(DeviceKernelsTest, IndicesBeyond32Bits) {
  const int64_t columns = (int64_t{1} << 17) + 4, rows = (int64_t{1} << 15) + 8;
  const Tensor x(dtype(), {rows, columns}), targets(DType::kI32, {rows});
  const Tensor stats(DType::kF32, {1, rows, 3});
  const std::unique_ptr<Backend> some = MakeSimulatedBackend({.sampled_blocks = 3});
  const auto last = [&] { return At(x.view().Slice(0, rows - 1, rows), {0, columns - 1}); };
  const auto before_last = [&] { return At(x.view().Slice(0, rows - 1, rows), {0, columns - 9}); };
  some->Fill({x, 3});
  EXPECT_EQ(last(), 3);
  EXPECT_EQ(At(x, {0, 0}), 3);
  some->Scale({x, 2});
  EXPECT_EQ(last(), 6);
  some->GeluForward({x, x});
  EXPECT_EQ(last(), 6);
  some->CrossEntropyStats({x, columns, targets, 0, stats.view().Reshape({rows, 3})});
  EXPECT_EQ(At(stats, {0, rows - 1, 0}), 6);
  EXPECT_EQ(before_last(), 6);
  const Tensor id(DType::kI32, {1}), row(dtype(), {1, columns});
  id.view().as<int32_t>()[0] = static_cast<int32_t>(rows - 1);
  some->EmbeddingForward({x, id, 0, row});
  EXPECT_EQ(At(row, {0, columns - 1}), 6);
  EXPECT_EQ(some->Synchronize(), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeviceKernelsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(ExactProductsTest, HaveTheBitsOfProcessors) {
  const auto device = MakeSimulatedBackend({}, DeviceNumerics::kExactProducts);
  const auto cpu = MakeCpuBackend(1, /*exact=*/true);
  testing::RandomTensors random(3);
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                   {1, 65, 3},
                                                                   {67, 5, 16},
                                                                   {64, 64, 33},
                                                                   {70, 130, 100},
                                                                   {3, 2, 700},
                                                                   {16300, 70, 21}}) {
    const Tensor a[] = {random.Normal(DType::kF32, {m, k}), random.Normal(DType::kF32, {k, m})};
    const Tensor b[] = {random.Normal(DType::kF32, {k, n}), random.Normal(DType::kF32, {n, k})};
    const Tensor bias = random.Normal(DType::kF32, {n}), c = random.Normal(DType::kF32, {m, n});
    // Any two of these four choices meet in each way; with small tiles, all four do.
    const std::vector<int> pairs = {0, 7, 11, 13, 14};
    for (int i = 0; i < 16; ++i) {
      if (m > 1000 && std::ranges::find(pairs, i) == pairs.end()) continue;
      const TensorView left = i % 2 == 0 ? a[0].view() : a[1].view().Transpose(0, 1);
      const TensorView right = i / 2 % 2 == 0 ? b[0].view() : b[1].view().Transpose(0, 1);
      const TensorView added = i / 4 % 2 == 0 ? bias.view() : TensorView();
      const Tensor expected = testing::Cloned(c), actual = testing::Cloned(c);
      cpu->MatMul({left, right, expected, /*accumulate=*/i / 8 == 0, added});
      device->MatMul({left, right, actual, /*accumulate=*/i / 8 == 0, added});
      testing::ExpectBitwiseEqual(actual, expected);
    }
    if (m > 1000) continue;  // large tiles alone
    std::vector<MatMulOperands> products;
    for (int i = 0; i < 5; ++i) products.push_back({a[0], b[0]});
    const Tensor expected(DType::kF32, {m, n}), actual(DType::kF32, {m, n});
    cpu->MatMulTree({products, expected});
    device->MatMulTree({products, actual});
    testing::ExpectBitwiseEqual(actual, expected);
  }
}

}  // namespace
}  // namespace tessera::cuda
