#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
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

using testing::Converted;

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

  void Check(const Case& c, double deviation) {
    SCOPED_TRACE(::testing::Message() << "B" << c.batch << " T" << c.sequence << " H" << c.heads
                                      << " K" << c.kv_heads << " D" << c.head_size);
    const Operands in(c, random_.Normal(dtype(), FusedShape(c), 0, deviation));
    const Shape q_shape = {c.batch, c.sequence, c.heads, c.head_size};
    const Tensor d_out = random_.Normal(dtype(), q_shape);
    const AttentionOptions options = OptionsOf(c);
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"out", Tensor(output, q_shape), 2});
      outputs.push_back({"lse", Tensor(statistic, {c.batch, c.heads, c.sequence}), 4});
      backend.AttentionForward(options, in.q, in.k, in.v, outputs[0].tensor, outputs[1].tensor);
      Operands gradients(c, Tensor(output, FusedShape(c)));
      backend.AttentionBackward(options, d_out, in.q, in.k, in.v, outputs[0].tensor,
                                outputs[1].tensor, gradients.q, gradients.k, gradients.v);
      outputs.push_back({"d_qkv", std::move(gradients.fused), 4});
      return outputs;
    });
  }
};

TEST_P(AttentionTest, OddShapes) {
  for (const Case& c : std::vector<Case>{{1, 1, 1, 1, 1, 0},
                                         {2, 5, 3, 3, 7, 0},
                                         {2, 64, 2, 2, 64, 0},
                                         {1, 130, 2, 1, 16, 0},
                                         {1, 257, 2, 2, 20, 0}}) {
    Check(c, 1);
  }
}

TEST_P(AttentionTest, GroupedQueryHeads) { Check({2, 37, 8, 2, 16, 0}, 1); }

TEST_P(AttentionTest, DropoutOfProbabilities) {
  Check({2, 33, 4, 2, 16, 0.25}, 1);
  Check({1, 150, 2, 2, 8, 0.5}, 1);
  Check({1, 300, 2, 1, 8, 0.5}, 1);  // more than one block and chunk of keys
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Case c = {1, 40, 2, 2, 32, 0};
  const Operands in(c, random_.Normal(dtype(), FusedShape(c), 0, 60));
  const Shape q_shape = {c.batch, c.sequence, c.heads, c.head_size};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor out(dtype(), q_shape), lse(DType::kF32, {1, 2, 40});
  backend->AttentionForward(OptionsOf(c), in.q, in.k, in.v, out, lse);
  EXPECT_TRUE(std::isfinite(backend->SumOfSquares(out)));
  EXPECT_TRUE(std::isfinite(backend->SumOfSquares(lse)));
  EXPECT_GT(backend->SumOfSquares(lse), 1e6);  // far beyond the range of exp()
}

TEST_P(AttentionTest, LaterTokensChangeNothingBefore) {
  const Case c = {1, 200, 2, 2, 16, 0};
  Operands in(c, random_.Normal(dtype(), FusedShape(c)));
  const Shape q_shape = {c.batch, c.sequence, c.heads, c.head_size};
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor before(dtype(), q_shape), after(dtype(), q_shape), lse(DType::kF32, {1, 2, 200});
  backend->AttentionForward(OptionsOf(c), in.q, in.k, in.v, before, lse);
  backend->Fill(in.fused.view().Slice(1, 140, 200), 100);
  backend->AttentionForward(OptionsOf(c), in.q, in.k, in.v, after, lse);
  testing::ExpectBitwiseEqual(after.view().Slice(1, 0, 140), before.view().Slice(1, 0, 140));
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
