// Norms, activations, dropout, rotary positions, loss, optimizer.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;

class LayerTest : public KernelTest {};

TEST_P(LayerTest, LayerNorm) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 16}, Shape{70, 131}, Shape{33, 768}}) {
    SCOPED_TRACE(ToString(shape));
    const int64_t rows = shape[0], columns = shape[1];
    const Tensor x = random_.Normal(dtype(), shape, 0.5, 2);
    const Tensor weight = random_.Normal(dtype(), {columns}, 1, 0.3);
    const Tensor bias = random_.Normal(dtype(), {columns}), d_out = random_.Normal(dtype(), shape);
    const Tensor residual = random_.Normal(dtype(), shape);
    const Tensor start = random_.Normal(DType::kF32, {columns});
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"out", Tensor(output, shape)});
      outputs.push_back({"mean", Tensor(statistic, {rows})});
      outputs.push_back({"rstd", Tensor(statistic, {rows})});
      outputs.push_back({"d_x", Tensor(output, shape), 2});
      outputs.push_back({"d_weight", Tensor(statistic, {columns}), 2});
      outputs.push_back({"d_bias", Tensor(statistic, {columns})});
      outputs.push_back({"residual d_x", Converted(residual, output), 2});
      outputs.push_back({"accumulated d_weight", Converted(start, statistic), 2});
      outputs.push_back({"accumulated d_bias", Converted(start, statistic)});
      const double epsilon = 1e-5;
      const Tensor& mean = outputs[1].tensor;
      const Tensor& rstd = outputs[2].tensor;
      backend.LayerNormForward(x, weight, bias, epsilon, outputs[0].tensor, mean, rstd);
      backend.LayerNormBackward(d_out, x, weight, mean, rstd, outputs[3].tensor, false,
                                outputs[4].tensor, outputs[5].tensor, false);
      backend.LayerNormBackward(d_out, x, weight, mean, rstd, outputs[6].tensor, true,
                                outputs[7].tensor, outputs[8].tensor, true);
      return outputs;
    });
  }
}

TEST_P(LayerTest, RmsNorm) {
  for (const Shape& shape : {Shape{1, 3}, Shape{3, 16}, Shape{70, 131}}) {
    SCOPED_TRACE(ToString(shape));
    const int64_t rows = shape[0], columns = shape[1];
    const Tensor x = random_.Normal(dtype(), shape, 0.5, 2);
    const Tensor weight = random_.Normal(dtype(), {columns}, 1, 0.3);
    const Tensor d_out = random_.Normal(dtype(), shape);
    const Tensor residual = random_.Normal(dtype(), shape);
    const Tensor start = random_.Normal(DType::kF32, {columns});
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"out", Tensor(output, shape)});
      outputs.push_back({"rstd", Tensor(statistic, {rows})});
      outputs.push_back({"d_x", Tensor(output, shape), 2});
      outputs.push_back({"d_weight", Tensor(statistic, {columns}), 2});
      outputs.push_back({"residual d_x", Converted(residual, output), 2});
      outputs.push_back({"accumulated d_weight", Converted(start, statistic), 2});
      const Tensor& rstd = outputs[1].tensor;
      backend.RmsNormForward(x, weight, 1e-5, outputs[0].tensor, rstd);
      backend.RmsNormBackward(d_out, x, weight, rstd, outputs[2].tensor, false, outputs[3].tensor,
                              false);
      backend.RmsNormBackward(d_out, x, weight, rstd, outputs[4].tensor, true, outputs[5].tensor,
                              true);
      return outputs;
    });
  }
}

// The sum of the residual stream and its norm: close to the reference, and with the bits of the two
// operations.
TEST_P(LayerTest, AddNorms) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 16}, Shape{37, 131}, Shape{9, 768}}) {
    SCOPED_TRACE(ToString(shape));
    const int64_t rows = shape[0], columns = shape[1];
    const Tensor a = random_.Normal(dtype(), shape, 0.5, 2), b = random_.Normal(dtype(), shape);
    const Tensor weight = random_.Normal(dtype(), {columns}, 1, 0.3);
    const Tensor bias = random_.Normal(dtype(), {columns});
    const auto allocate = [&](DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"sum", Converted(b, output)});
      outputs.push_back({"LayerNorm", Tensor(output, shape)});
      outputs.push_back({"mean", Tensor(statistic, {rows})});
      outputs.push_back({"rstd", Tensor(statistic, {rows})});
      outputs.push_back({"sum", Converted(a, output)});
      outputs.push_back({"RMSNorm", Tensor(output, shape)});
      outputs.push_back({"rstd", Tensor(statistic, {rows})});
      return outputs;
    };
    const auto fused = [&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> o = allocate(output, statistic);
      const Tensor left = Converted(a, output), right = Converted(b, output);
      // In place: the sum is the second operand, or the first.
      backend.AddLayerNormForward(left, o[0].tensor, o[0].tensor, weight, bias, 1e-5, o[1].tensor,
                                  o[2].tensor, o[3].tensor);
      backend.AddRmsNormForward(o[4].tensor, right, o[4].tensor, weight, 1e-5, o[5].tensor,
                                o[6].tensor);
      EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
      return o;
    };
    // In bf16, the norm of the rounded sum is not that of the reference's exact sum.
    if (dtype() == DType::kF32) ExpectMatchesReference(fused);
    const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
    const std::vector<Output> expected = allocate(dtype(), DType::kF32);
    for (const int i : {0, 4}) backend->Add(a, b, expected[i].tensor);
    backend->LayerNormForward(expected[0].tensor, weight, bias, 1e-5, expected[1].tensor,
                              expected[2].tensor, expected[3].tensor);
    backend->RmsNormForward(expected[4].tensor, weight, 1e-5, expected[5].tensor,
                            expected[6].tensor);
    ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
    for (const BackendVariant& variant : VariantsUnderTest()) {
      const std::vector<Output> actual = fused(*variant.make(), dtype(), DType::kF32);
      for (size_t i = 0; variant.same_bits && i < actual.size(); ++i) {
        ExpectBitwiseEqual(actual[i].tensor, expected[i].tensor,
                           actual[i].name + " on " + variant.name);
      }
    }
  }
}

TEST_P(LayerTest, Gelu) {
  const Shape shape = {5, 4099};
  const Tensor x = random_.Normal(dtype(), shape, 0, 3), d_out = random_.Normal(dtype(), shape);
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"out", Tensor(output, shape)});
    outputs.push_back({"d_x", Tensor(output, shape)});
    outputs.push_back({"in place", Converted(d_out, output)});
    backend.GeluForward(x, outputs[0].tensor);
    backend.GeluBackward(d_out, x, outputs[1].tensor);
    backend.GeluBackward(outputs[2].tensor, x, outputs[2].tensor);
    return outputs;
  });
}

TEST_P(LayerTest, ProductsWithGelu) {
  for (const auto& sizes : {std::array<int64_t, 3>{3, 8, 5}, {17, 40, 24}, {9, 13, 7}}) {
    const int64_t m = sizes[0], n = sizes[1], k = sizes[2];
    SCOPED_TRACE(ToString({m, n, k}));
    const Tensor a = random_.Normal(dtype(), {m, k}), b = random_.Normal(dtype(), {k, n});
    const Tensor bias = random_.Normal(dtype(), {n}), b_rows = random_.Normal(dtype(), {n, k});
    const Tensor pre = random_.Normal(dtype(), {m, n}, 0, 2);
    ExpectMatchesReference([&](Backend& backend, DType output, DType) {
      std::vector<Output> outputs;
      for (const char* name : {"pre", "act", "pre without bias", "act without bias", "d_pre"}) {
        outputs.push_back({name, Tensor(output, {m, n}), 3});
      }
      backend.MatMulGelu(a, b, bias, outputs[0].tensor, outputs[1].tensor);
      backend.MatMulGelu(a, b_rows.view().Transpose(0, 1), {}, outputs[2].tensor,
                         outputs[3].tensor);
      backend.MatMulGeluBackward(a, b, pre, outputs[4].tensor);
      return outputs;
    });
  }
}

TEST_P(LayerTest, GeluOfExtremeValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-1e30f, -100, -20, 20, 100, 1e30f, infinity};
  const Tensor x32(DType::kF32, {1, 7});
  for (int i = 0; i < 7; ++i) x32.view().as<float>()[i] = values[i];
  const Tensor x = Converted(x32, dtype()), ones(dtype(), {1, 7}), out(dtype(), {1, 7});
  const Tensor d_x(dtype(), {1, 7});
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  backend->Fill(ones, 1);
  backend->GeluForward(x, out);
  backend->GeluBackward(ones, x, d_x);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(testing::At(out, {0, i}), values[i] > 0 ? testing::At(x, {0, i}) : 0) << values[i];
    EXPECT_EQ(testing::At(d_x, {0, i}), values[i] > 0 ? 1 : 0) << values[i];
  }
}

TEST_P(LayerTest, SwiGlu) {
  const int64_t rows = 13, half = 517;
  const Tensor gate_up = random_.Normal(dtype(), {rows, 2 * half}, 0, 3);
  const Tensor d_out = random_.Normal(dtype(), {rows, half});
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"out", Tensor(output, {rows, half})});
    outputs.push_back({"d_gate_up", Tensor(output, {rows, 2 * half})});
    backend.SwiGluForward(gate_up, outputs[0].tensor);
    backend.SwiGluBackward(d_out, gate_up, outputs[1].tensor);
    return outputs;
  });
}

TEST_P(LayerTest, DropoutOfAShard) {
  const Dropout dropout = {
      .probability = 0.3,
      .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 0x123456789abcdef},
      .first_sample = 5,
      .rows_per_sample = 7,
      .row_offset = 3,
      .global_columns = 5000,
      .column_offset = 1237};
  const Tensor x = random_.Normal(dtype(), {21, 2051}, 3, 0.5);
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"x", Converted(x, output)});
    backend.ApplyDropout(dropout, outputs[0].tensor);
    return outputs;
  });
}

TEST_P(LayerTest, DropoutCountersCarryIntoTheHighWord) {
  // Blocks around 2^32, where sixteen lanes straddle the wrap.
  const Dropout dropout = {.probability = 0.5,
                           .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 1},
                           .global_columns = (int64_t{1} << 34) + 1000,
                           .column_offset = (int64_t{1} << 34) - 37};
  const Tensor x = random_.Normal(dtype(), {1, 300}, 3, 0.5);
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"x", Converted(x, output)});
    backend.ApplyDropout(dropout, outputs[0].tensor);
    return outputs;
  });
}

TEST_P(LayerTest, RopeOfAStridedView) {
  const int64_t batch = 2, sequence = 11, heads = 3, size = 42;
  const Tensor cos = random_.Uniform(DType::kF32, {sequence, size / 2}, -1, 1);
  const Tensor sin = random_.Uniform(DType::kF32, {sequence, size / 2}, -1, 1);
  const Tensor x = random_.Normal(dtype(), {batch, sequence, heads + 2, size});
  for (bool inverse : {false, true}) {
    ExpectMatchesReference([&](Backend& backend, DType output, DType) {
      std::vector<Output> outputs;
      outputs.push_back({"x", Converted(x, output)});
      backend.Rope(cos, sin, inverse, outputs[0].tensor.view().Slice(2, 1, heads + 1));
      return outputs;
    });
  }
}

TEST_P(LayerTest, CrossEntropyOfShards) {
  const int64_t rows = 9, local = 75, shards = 3;
  // The last shard has padding columns; one target is ignored.
  const int64_t valid[] = {75, 75, 51};
  std::vector<Tensor> logits;
  for (int64_t s = 0; s < shards; ++s)
    logits.push_back(random_.Normal(dtype(), {rows, local}, 0, 4));
  const Tensor targets = random_.Ids({rows}, 0, 201);
  targets.view().as<int32_t>()[4] = -1;
  for (DType width : {dtype(), DType::kF32}) {
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      const DType logit_dtype = output == DType::kF64 ? output : width;
      std::vector<Output> outputs;
      outputs.push_back({"stats", Tensor(statistic, {shards, rows, 3})});
      outputs.push_back({"combined", Tensor(statistic, {rows, 3})});
      outputs.push_back({"losses", Tensor(statistic, {rows})});
      for (int64_t s = 0; s < shards; ++s) {
        outputs.push_back({"d_logits", Converted(logits[s], logit_dtype)});
        const TensorView stats = outputs[0].tensor.view().Slice(0, s, s + 1).Reshape({rows, 3});
        backend.CrossEntropyStats(outputs.back().tensor, valid[s], targets, s * local, stats);
      }
      backend.CrossEntropyLoss(outputs[0].tensor, targets, outputs[1].tensor, outputs[2].tensor);
      for (int64_t s = 0; s < shards; ++s) {
        backend.CrossEntropyBackward(outputs[1].tensor, targets, valid[s], s * local, 0.125,
                                     outputs[3 + s].tensor);
      }
      const TensorView padding = outputs[5].tensor.view().Slice(1, 51, 75);
      const Tensor zeros(logit_dtype, padding.shape());
      ExpectBitwiseEqual(padding, zeros, "padding columns");
      const TensorView ignored = outputs[3].tensor.view().Slice(0, 4, 5);
      ExpectBitwiseEqual(ignored, Tensor(logit_dtype, {1, local}), "ignored row");
      return outputs;
    });
  }
}

TEST_P(LayerTest, CrossEntropyOfLongRowsAndLargeLogits) {
  const int64_t rows = 3, columns = 20011;
  const Tensor x = random_.Normal(dtype(), {rows, columns}, 0, 300);
  const Tensor targets = random_.Ids({rows}, 0, columns);
  ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
    std::vector<Output> outputs;
    outputs.push_back({"stats", Tensor(statistic, {1, rows, 3})});
    outputs.push_back({"combined", Tensor(statistic, {rows, 3})});
    outputs.push_back({"losses", Tensor(statistic, {rows})});
    outputs.push_back({"d_logits", Converted(x, output)});
    backend.CrossEntropyStats(x, columns, targets, 0, outputs[0].tensor.view().Reshape({rows, 3}));
    backend.CrossEntropyLoss(outputs[0].tensor, targets, outputs[1].tensor, outputs[2].tensor);
    backend.CrossEntropyBackward(outputs[1].tensor, targets, columns, 0, 1, outputs[3].tensor);
    return outputs;
  });
}

TEST_P(LayerTest, AdamW) {
  const int64_t count = 40003;
  const Tensor grad = random_.Normal(DType::kF32, {count}),
               m = random_.Normal(DType::kF32, {count});
  const Tensor v = random_.Uniform(DType::kF32, {count}, 0, 1);
  const Tensor weight = random_.Normal(DType::kF32, {count});
  for (int64_t step : {1, 10}) {
    const AdamWOptions options = {
        .learning_rate = 1e-2, .weight_decay = 0.1, .step = step, .grad_scale = 0.5};
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"m", Converted(m, statistic)});
      outputs.push_back({"v", Converted(v, statistic)});
      outputs.push_back({"master", Converted(weight, statistic)});
      outputs.push_back({"param", Converted(weight, output)});
      backend.AdamW(options, grad, outputs[2].tensor, outputs[0].tensor, outputs[1].tensor,
                    outputs[3].tensor);
      return outputs;
    });
  }
}

// ZeRO splits flat tensors anywhere: an element's update must not depend on where a range begins.
TEST_P(LayerTest, AdamWDoesNotDependOnCuts) {
  const int64_t count = 1000, cut = 333;
  const AdamWOptions options = {.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3};
  const Tensor grad = random_.Normal(DType::kF32, {count});
  const Tensor start = random_.Normal(DType::kF32, {count});
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  std::vector<Tensor> weights;
  for (int pieces = 1; pieces <= 2; ++pieces) {
    weights.push_back(Cloned(start));
    const Tensor m(DType::kF32, {count}), v(DType::kF32, {count}), param(dtype(), {count});
    const auto update = [&](int64_t begin, int64_t end) {
      backend->AdamW(options, grad.view().Slice(0, begin, end),
                     weights.back().view().Slice(0, begin, end), m.view().Slice(0, begin, end),
                     v.view().Slice(0, begin, end), param.view().Slice(0, begin, end));
    };
    update(0, pieces == 1 ? count : cut);
    if (pieces == 2) update(cut, count);
  }
  ExpectBitwiseEqual(weights[1], weights[0]);
}

// The optimizer's runs of parameters, of many lengths and with weight decay or without, are updated
// in one call.
TEST_P(LayerTest, AdamWAllHasTheBitsOfEachPart) {
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
      backend->AdamWAll(options, parts);
      continue;
    }
    for (const AdamWOperands& p : parts) {
      AdamWOptions own = options;
      own.weight_decay = p.weight_decay;
      backend->AdamW(own, p.grad, p.master, p.m, p.v, p.param);
    }
  }
  ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
  for (int i = 0; i < 4; ++i) ExpectBitwiseEqual(results[1][i], results[0][i]);
}

TEST(AdamWTest, UpdatesFp32ParametersThemselves) {
  testing::RandomTensors random(7);
  const Tensor grad = random.Normal(DType::kF32, {100}), start = random.Normal(DType::kF32, {100});
  const AdamWOptions options = {.learning_rate = 1e-2};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor m1(DType::kF32, {100}), v1(DType::kF32, {100}), m2(DType::kF32, {100}),
      v2(DType::kF32, {100}), param(DType::kF32, {100});
  const Tensor alone = Cloned(start), master = Cloned(start);
  backend->AdamW(options, grad, {}, m1, v1, alone);
  backend->AdamW(options, grad, master, m2, v2, param);
  ExpectBitwiseEqual(alone, master);
  ExpectBitwiseEqual(param, master);
}

INSTANTIATE_TEST_SUITE_P(DTypes, LayerTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
