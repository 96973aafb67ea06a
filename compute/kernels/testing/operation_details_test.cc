// What the table of operation_cases.h does not show: roundings, extreme values, zeros, the bits of
// fused operations, and units other than rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;

class OperationDetailsTest : public KernelTest {};

TEST_P(OperationDetailsTest, CopiesAnyStridesBetweenAnyDTypes) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  for (DType from : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Tensor x = random_.Normal(from, {3, 37, 41, 5});
    const TensorView part = x.view().Slice(1, 2, 35).Slice(2, 1, 40);
    for (const TensorView& view :
         {x.view(), part, part.Transpose(1, 3), part.Transpose(0, 2).Transpose(1, 3)}) {
      const Tensor actual(dtype(), view.shape()), expected(dtype(), view.shape());
      backend->Copy({view, actual});
      reference_->Copy({view, expected});
      ExpectBitwiseEqual(actual, expected);
      const Tensor wide(dtype(), {view.dim(0), view.dim(1), view.dim(3), view.dim(2) + 3});
      const TensorView target = wide.view().Slice(3, 1, view.dim(2) + 1).Transpose(2, 3);
      backend->Copy({view, target});
      ExpectBitwiseEqual(target, expected);
    }
  }
  const Tensor ids = random_.Ids({1000}, -5, 5), copy(DType::kI32, {1000});
  backend->Copy({ids, copy});
  ExpectBitwiseEqual(copy, ids);
}

// Sums over canonical units are the sums of each, added in the tree.
TEST_P(OperationDetailsTest, SumsInUnitsAreTheirTree) {
  constexpr int64_t kUnits = 8, kSequence = 6, kRows = 2 * kUnits * kSequence, kColumns = 37;
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor d = random_.Normal(dtype(), {kRows, kColumns});
  const Tensor ids = random_.Ids({kRows}, 0, 30);
  const Tensor tables(DType::kF32, {kUnits, 20, kColumns}), table(DType::kF32, {20, kColumns});
  const Tensor positions(DType::kF32, {kUnits, kSequence, kColumns}),
      position(DType::kF32, {kSequence, kColumns});
  backend->Fill({tables, 0});
  backend->Fill({table, 0});
  const auto unit = [](const TensorView& x, int64_t i) {
    return x.Slice(0, i, i + 1).Reshape({x.dim(1), x.dim(2)});
  };
  for (int64_t i = 0; i < kUnits; ++i) {
    const int64_t begin = i * kRows / kUnits, end = (i + 1) * kRows / kUnits;
    const TensorView rows = d.view().Slice(0, begin, end);
    backend->EmbeddingBackward({rows, ids.view().Slice(0, begin, end), 5, unit(tables, i)});
    backend->AddPositionsBackward({rows, kSequence, unit(positions, i), false});
  }
  for (const Tensor* all : {&tables, &positions}) {
    for (int64_t step = 1; step < kUnits; step *= 2) {
      for (int64_t i = 0; i < kUnits; i += 2 * step) {
        backend->Add({unit(*all, i), unit(*all, i + step), unit(*all, i)});
      }
    }
  }
  backend->EmbeddingBackward({d, ids, 5, table, kUnits});
  backend->AddPositionsBackward({d, kSequence, position, false, kUnits});
  ExpectBitwiseEqual(table, unit(tables, 0), "table");
  ExpectBitwiseEqual(position, unit(positions, 0), "positions");
}

TEST_P(OperationDetailsTest, RoundsToNearestEvenAndKeepsNaN) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x(DType::kF32, {1 << 16}), narrow(DType::kBF16, {1 << 16});
  // Every upper half, with lower halves around the tie.
  for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    for (uint32_t i = 0; i < (1 << 16); ++i) {
      x.view().as<float>()[i] = std::bit_cast<float>((i << 16) | low);
    }
    backend->Copy({x, narrow});
    for (int64_t i = 0; i < (1 << 16); ++i) {
      ASSERT_EQ(narrow.view().as<BFloat16>()[i].bits, BFloat16(x.view().as<float>()[i]).bits) << i;
    }
  }
}

TEST_P(OperationDetailsTest, DoubleToBFloat16RoundsOnce) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const double ulp = 1.0 / 128;
  const Tensor x(DType::kF64, {4}), actual(DType::kBF16, {4}), expected(DType::kBF16, {4});
  const double values[] = {1 + ulp / 2 + 1e-12, 1 + ulp * 1.5 - 1e-12, -1 - ulp / 2 - 1e-12,
                           1 + ulp / 2};
  for (int i = 0; i < 4; ++i) x.view().as<double>()[i] = values[i];
  backend->Copy({x, actual});
  reference_->Copy({x, expected});
  ExpectBitwiseEqual(actual, expected);
}

// The sum is rounded once.
TEST_P(OperationDetailsTest, BiasIsAddedBeforeRounding) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x = random_.Normal(DType::kF32, {9, 131}), bias = random_.Normal(dtype(), {131});
  const Tensor actual(dtype(), {9, 131}), expected(dtype(), {9, 131});
  backend->AddBias({x, bias, actual});
  const Tensor sum = Converted(x, DType::kF32);
  for (int64_t row = 0; row < 9; ++row) {
    const TensorView one = sum.view().Slice(0, row, row + 1).Reshape({131});
    backend->Add({one, bias, one});
  }
  backend->Copy({sum, expected});
  ExpectBitwiseEqual(actual, expected);
}

// The owner of some blocks computes the same sums as an owner of all.
TEST_P(OperationDetailsTest, SumsOfSquaresOfABlockDependOnItAlone) {
  const int64_t count = 100003, block = 256, blocks = (count + block - 1) / block;
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x = random_.Normal(dtype(), {count});
  const auto sums_by_block = [&](const TensorView& of) {
    std::vector<TensorView> parts;
    for (int64_t begin = 0; begin < of.elements(); begin += block) {
      parts.push_back(of.Slice(0, begin, std::min(of.elements(), begin + block)));
    }
    std::vector<double> sums(parts.size());
    backend->SumsOfSquares({parts, block, sums});
    return sums;
  };
  const std::vector<double> whole = sums_by_block(x.view());
  // The tree over the blocks, by its definition.
  const std::function<double(int64_t, int64_t)> tree = [&](int64_t begin, int64_t end) {
    if (end == begin + 1) return whole[begin];
    const int64_t middle =
        begin + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(end - begin - 1)));
    return tree(begin, middle) + tree(middle, end);
  };
  std::vector<TensorView> parts;
  std::vector<double> expected;
  for (const int64_t end :
       {int64_t{1}, int64_t{2}, int64_t{31}, int64_t{65}, int64_t{300}, blocks}) {
    parts.push_back(x.view().Slice(0, 0, std::min(count, end * block)));
    expected.push_back(tree(0, end));
  }
  std::vector<double> sums(parts.size());
  backend->SumsOfSquares({parts, block, sums});
  EXPECT_EQ(sums, expected);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, blocks}, {77, 300}}) {
    for (int64_t shift : {0, 1, 16}) {
      const TensorView from = x.view().Slice(0, begin * block, std::min(count, end * block));
      const Tensor room(dtype(), {from.elements() + shift});
      const TensorView part = room.view().Slice(0, shift, shift + from.elements());
      backend->Copy({from, part});
      EXPECT_EQ(sums_by_block(part),
                std::vector<double>(whole.begin() + begin, whole.begin() + end));
    }
  }
}

// One operation has the bits of the three steps. A GPU holds only a part of the longest rows.
TEST_P(OperationDetailsTest, LossAndGradientAreTheThreeSteps) {
  const int64_t rows = 5;
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  for (const int64_t columns : {704, 703, 50048}) {
    const int64_t valid = columns - 3;
    const Tensor targets = random_.Ids({rows}, -2, valid);
    targets.view().as<int32_t>()[0] = static_cast<int32_t>(valid - 1);
    const Tensor logits = random_.Normal(dtype(), {rows, columns}, 0, 3);
    const Tensor together = Cloned(logits);
    std::vector<Tensor> results;
    for (const bool at_once : {false, true}) {
      const Tensor& x = at_once ? together : logits;
      const Tensor stats(DType::kF32, {1, rows, 3}), combined(DType::kF32, {rows, 3});
      const Tensor losses(DType::kF32, {rows});
      if (at_once) {
        backend->CrossEntropyGradient({x, valid, targets, 0.25, stats, combined, losses});
      } else {
        backend->CrossEntropyStats({x, valid, targets, 0, stats.view().Reshape({rows, 3})});
        backend->CrossEntropyLoss({stats, targets, combined, losses});
        backend->CrossEntropyBackward({combined, targets, valid, 0, 0.25, x});
      }
      for (const Tensor* result : {&x, &combined, &losses}) results.push_back(Cloned(*result));
    }
    for (int i = 0; i < 3; ++i) ExpectBitwiseEqual(results[i], results[i + 3]);
  }
}

// In one pass over memory, the bits of the two operations.
TEST_P(OperationDetailsTest, SumAndNormAreTheTwoOperations) {
  const Shape shape = {37, 131};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor a = random_.Normal(dtype(), shape, 0.5, 2), b = random_.Normal(dtype(), shape);
  const Tensor weight = random_.Normal(dtype(), {131}, 1, 0.3),
               bias = random_.Normal(dtype(), {131});
  const auto statistic = [] { return Tensor(DType::kF32, {37}); };
  const auto matrix = [&] { return Tensor(dtype(), shape); };
  const Tensor sum = matrix(), out = matrix(), mean = statistic(), rstd = statistic();
  const Tensor sum2 = matrix(), out2 = matrix(), mean2 = statistic(), rstd2 = statistic();
  backend->Add({a, b, sum});
  backend->LayerNormForward({sum, weight, bias, 1e-5, out, mean, rstd});
  backend->AddLayerNormForward({a, b, sum2, weight, bias, 1e-5, out2, mean2, rstd2});
  ExpectBitwiseEqual(sum2, sum, "sum");
  ExpectBitwiseEqual(out2, out, "LayerNorm");
  ExpectBitwiseEqual(mean2, mean, "mean");
  ExpectBitwiseEqual(rstd2, rstd, "rstd");
  backend->RmsNormForward({sum, weight, 1e-5, out, rstd});
  backend->AddRmsNormForward({a, b, sum2, weight, 1e-5, out2, rstd2});
  ExpectBitwiseEqual(sum2, sum, "sum");
  ExpectBitwiseEqual(out2, out, "RMSNorm");
  ExpectBitwiseEqual(rstd2, rstd, "rstd");
}

TEST_P(OperationDetailsTest, GeluOfExtremeValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-1e30f, -100, -20, 20, 100, 1e30f, infinity};
  const Tensor x32(DType::kF32, {1, 7});
  for (int i = 0; i < 7; ++i) x32.view().as<float>()[i] = values[i];
  const Tensor x = Converted(x32, dtype()), ones(dtype(), {1, 7}), out(dtype(), {1, 7});
  const Tensor d_x(dtype(), {1, 7});
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  backend->Fill({ones, 1});
  backend->GeluForward({x, out});
  backend->GeluBackward({ones, x, d_x});
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(testing::At(out, {0, i}), values[i] > 0 ? testing::At(x, {0, i}) : 0) << values[i];
    EXPECT_EQ(testing::At(d_x, {0, i}), values[i] > 0 ? 1 : 0) << values[i];
  }
}

// The optimizer's runs of parameters, of many lengths and with weight decay or without, are updated
// in one call.
TEST_P(OperationDetailsTest, AdamWAllHasTheBitsOfEachPart) {
  const AdamWOptions options = {.learning_rate = 1e-2, .step = 3, .grad_scale = 0.5};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  constexpr int64_t kParts = 50, kCount = kParts * 160 + 9000;
  const Tensor grad = random_.Normal(DType::kF32, {kCount});
  const Tensor start = random_.Normal(DType::kF32, {kCount});
  std::vector<std::vector<Tensor>> results(2);
  for (int together = 0; together < 2; ++together) {
    std::vector<Tensor>& x = results[together];
    x.push_back(Cloned(start));
    for (int i = 0; i < 2; ++i) x.emplace_back(DType::kF32, Shape{kCount});
    x.emplace_back(dtype(), Shape{kCount});
    std::vector<AdamWOperands> parts;
    for (int64_t i = 0, begin = 0; i < kParts; ++i) {
      const int64_t end = i + 1 == kParts ? kCount : begin + (i % 7) * 37;
      const auto part = [&](const TensorView& whole) { return whole.Slice(0, begin, end); };
      parts.push_back(
          {part(grad), part(x[0]), part(x[1]), part(x[2]), part(x[3]), i % 2 == 0 ? 0.1 : 0});
      begin = end;
    }
    if (together == 1) {
      backend->AdamWAll({options, parts});
      continue;
    }
    for (const AdamWOperands& p : parts) {
      AdamWOptions own = options;
      own.weight_decay = p.weight_decay;
      backend->AdamW({own, p.grad, p.master, p.m, p.v, p.param});
    }
  }
  ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
  for (int i = 0; i < 4; ++i) ExpectBitwiseEqual(results[1][i], results[0][i]);
}

TEST_P(OperationDetailsTest, PaddingAndIgnoredRowsHaveNoGradient) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor logits = random_.Normal(dtype(), {3, 75}, 0, 4), targets(DType::kI32, {3});
  targets.view().as<int32_t>()[1] = -1;
  const Tensor stats(DType::kF32, {1, 3, 3}), combined(DType::kF32, {3, 3}),
      losses(DType::kF32, {3});
  backend->CrossEntropyStats({logits, 51, targets, 0, stats.view().Reshape({3, 3})});
  backend->CrossEntropyLoss({stats, targets, combined, losses});
  backend->CrossEntropyBackward({combined, targets, 51, 0, 0.125, logits});
  EXPECT_EQ(testing::At(losses, {1}), 0);
  EXPECT_NE(testing::At(logits, {0, 0}), 0);
  ExpectBitwiseEqual(logits.view().Slice(1, 51, 75), Tensor(dtype(), {3, 24}), "padding columns");
  ExpectBitwiseEqual(logits.view().Slice(0, 1, 2), Tensor(dtype(), {1, 75}), "ignored row");
}

TEST(AdamWTest, UpdatesFp32ParametersThemselves) {
  testing::RandomTensors random(7);
  const Tensor grad = random.Normal(DType::kF32, {100}), start = random.Normal(DType::kF32, {100});
  const AdamWOptions options = {.learning_rate = 1e-2};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor m1(DType::kF32, {100}), v1(DType::kF32, {100}), m2(DType::kF32, {100}),
      v2(DType::kF32, {100}), param(DType::kF32, {100});
  const Tensor alone = Cloned(start), master = Cloned(start);
  backend->AdamW({options, grad, {}, m1, v1, alone});
  backend->AdamW({options, grad, master, m2, v2, param});
  ExpectBitwiseEqual(alone, master);
  ExpectBitwiseEqual(param, master);
}

// The gradient of a norm's weight over a block of rows is a sum that one rank computes alone.
TEST_P(OperationDetailsTest, NormWeightGradientsOfABlockOfRows) {
  const int64_t rows = 96, columns = 131;
  const Tensor weight = random_.Normal(dtype(), {columns}),
               x = random_.Normal(dtype(), {rows, columns});
  const Tensor d_out = random_.Normal(dtype(), {rows, columns}), d_x(dtype(), {rows, columns});
  const Tensor mean = random_.Normal(DType::kF32, {rows}),
               rstd = random_.Normal(DType::kF32, {rows}, 1, 0.1);
  const auto block = [&](Backend& backend, const Tensor& of_d_out, const Tensor& of_x) {
    Tensor sums(DType::kF32, {2, columns});
    const auto part = [](const Tensor& t) { return t.view().Slice(0, 32, 64); };
    backend.LayerNormBackward({part(of_d_out), part(of_x), weight, part(mean), part(rstd),
                               part(d_x), false, sums.view().Slice(0, 0, 1).Reshape({columns}),
                               sums.view().Slice(0, 1, 2).Reshape({columns}), false});
    return sums;
  };
  const Tensor before = block(*MakeBackendUnderTest(), d_out, x);
  // Other rows do not contribute.
  const Tensor other_d_out = Cloned(d_out), other_x = Cloned(x);
  for (const Tensor* tensor : {&other_d_out, &other_x}) {
    MakeBackendUnderTest()->Fill({tensor->view().Slice(0, 0, 32), 7});
    MakeBackendUnderTest()->Fill({tensor->view().Slice(0, 64, rows), 7});
  }
  ExpectBitwiseEqual(block(*MakeBackendUnderTest(), other_d_out, other_x), before);
}

TEST_P(OperationDetailsTest, DropoutOfColumns) {
  const Dropout whole = {.probability = 0.3,
                         .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 12},
                         .rows_per_sample = 7,
                         .global_columns = 203};
  const Tensor x = random_.Normal(dtype(), {21, 203}, 3, 0.5);
  const Tensor part = Cloned(x.view().Slice(1, 77, 190));
  Dropout shard = whole;
  shard.column_offset = 77;
  MakeBackendUnderTest()->ApplyDropout({whole, x});
  MakeBackendUnderTest()->ApplyDropout({shard, part});
  ExpectBitwiseEqual(part, x.view().Slice(1, 77, 190));
}

struct Case {
  int64_t batch, sequence, heads, kv_heads, head_size;
  double dropout;
};

class AttentionTest : public KernelTest {
 protected:
  // q, k and v are views into one fused buffer, as in the models.
  struct Operands {
    explicit Operands(const Case& c, Tensor buffer) : fused(std::move(buffer)) {
      const TensorView all =
          fused.view().Reshape({c.batch, c.sequence, c.heads + 2 * c.kv_heads, c.head_size});
      q = all.Slice(2, 0, c.heads);
      k = all.Slice(2, c.heads, c.heads + c.kv_heads);
      v = all.Slice(2, c.heads + c.kv_heads, c.heads + 2 * c.kv_heads);
    }
    Tensor fused;
    TensorView q, k, v;
  };

  static Shape FusedShape(const Case& c) {
    return {c.batch, c.sequence, (c.heads + 2 * c.kv_heads) * c.head_size};
  }

  static AttentionOptions OptionsOf(const Case& c) {
    return {.scale = 1 / std::sqrt(static_cast<double>(c.head_size)),
            .dropout_probability = c.dropout,
            .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77},
            .first_sample = 9,
            .first_head = 3};
  }
};

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Case c = {1, 40, 2, 2, 32, 0};
  const Operands in(c, random_.Normal(dtype(), FusedShape(c), 0, 60));
  const Shape q_shape = {c.batch, c.sequence, c.heads, c.head_size};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor out(dtype(), q_shape), lse(DType::kF32, {1, 2, 40});
  backend->AttentionForward({OptionsOf(c), in.q, in.k, in.v, out, lse});
  EXPECT_TRUE(std::isfinite(backend->SumOfSquares({out})));
  EXPECT_TRUE(std::isfinite(backend->SumOfSquares({lse})));
  EXPECT_GT(backend->SumOfSquares({lse}), 1e6);  // far beyond the range of exp()
}

TEST_P(AttentionTest, LaterTokensChangeNothingBefore) {
  const Case c = {1, 200, 2, 2, 16, 0};
  Operands in(c, random_.Normal(dtype(), FusedShape(c)));
  const Shape q_shape = {c.batch, c.sequence, c.heads, c.head_size};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor before(dtype(), q_shape), after(dtype(), q_shape), lse(DType::kF32, {1, 2, 200});
  backend->AttentionForward({OptionsOf(c), in.q, in.k, in.v, before, lse});
  backend->Fill({in.fused.view().Slice(1, 140, 200), 100});
  backend->AttentionForward({OptionsOf(c), in.q, in.k, in.v, after, lse});
  testing::ExpectBitwiseEqual(after.view().Slice(1, 0, 140), before.view().Slice(1, 0, 140));
}

// Heads 2 to 5 of 6, with their two of three key/value heads, have the bits that they have among
// all, as views and as separate buffers.
TEST_P(AttentionTest, HeadsDependOnThemselvesAlone) {
  const Case c = {2, 150, 6, 3, 16, 0.2};
  const Shape q = {2, 150, 6, 16}, kv = {2, 150, 3, 16};
  // q, k, v, out, log_sum_exp, d_out, d_q, d_k, d_v.
  std::vector<Tensor> whole;
  for (const Shape& shape : {q, kv, kv, q}) whole.push_back(random_.Normal(dtype(), shape));
  whole.push_back(random_.Normal(DType::kF32, {2, 6, 150}));
  for (const Shape& shape : {q, q, kv, kv}) whole.push_back(random_.Normal(dtype(), shape));
  const auto run = [&](int64_t first_head, const std::vector<TensorView>& x) {
    const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
    AttentionOptions options = OptionsOf(c);
    options.first_head += first_head;
    backend->AttentionForward({options, x[0], x[1], x[2], x[3], x[4]});
    backend->AttentionBackward({options, x[5], x[0], x[1], x[2], x[3], x[4], x[6], x[7], x[8]});
    ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
  };
  const size_t kStatistics = 4;  // contiguous, and the one operand whose heads are dim 1
  std::vector<Tensor> copies, own;
  std::vector<TensorView> views, parts;
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool is_kv = whole[i].view().rank() == 4 && whole[i].view().dim(2) == 3;
    const int dim = i == kStatistics ? 1 : 2;
    const auto part = [&](const Tensor& x) {
      return x.view().Slice(dim, is_kv ? 1 : 2, is_kv ? 3 : 6);
    };
    parts.push_back(part(whole[i]));
    own.push_back(Cloned(parts.back()));
    copies.push_back(Cloned(whole[i]));
    views.push_back(part(copies.back()));
  }
  const Tensor statistics = Cloned(parts[kStatistics]);
  views[kStatistics] = statistics;
  run(0, {whole.begin(), whole.end()});
  run(2, views);
  run(2, {own.begin(), own.end()});
  for (size_t i = 0; i < whole.size(); ++i) {
    ExpectBitwiseEqual(views[i], parts[i], "views, operand " + std::to_string(i));
    ExpectBitwiseEqual(own[i], parts[i], "own buffers, operand " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, OperationDetailsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
