#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;

struct Extents {
  int64_t m, n, k;
};

class MatMulTest : public KernelTest {};

TEST_P(MatMulTest, EveryLayoutOfOddShapes) {
  const std::vector<Extents> all = {{1, 1, 1},     {1, 7, 5},     {3, 1, 9},     {17, 33, 65},
                                    {300, 70, 31}, {40, 700, 48}, {257, 513, 64}};
  for (const Extents& e : all) {
    for (int layout = 0; layout < 4; ++layout) {
      SCOPED_TRACE(::testing::Message() << e.m << "x" << e.n << "x" << e.k << " layout " << layout);
      const bool a_transposed = layout & 1, b_transposed = layout & 2;
      const Tensor a = random_.Normal(dtype(), a_transposed ? Shape{e.k, e.m} : Shape{e.m, e.k});
      const Tensor b = random_.Normal(dtype(), b_transposed ? Shape{e.n, e.k} : Shape{e.k, e.n});
      ExpectMatchesReference([&](Backend& backend, DType output, DType) {
        std::vector<Output> outputs;
        outputs.push_back({"c", Tensor(output, {e.m, e.n})});
        backend.MatMul({a_transposed ? a.view().Transpose(0, 1) : a.view(),
                        b_transposed ? b.view().Transpose(0, 1) : b.view(), outputs[0].tensor,
                        /*accumulate=*/false});
        return outputs;
      });
    }
  }
}

// Multiples of the sizes that matrix units prefer, in more than one tile: tails of rows, more
// columns and longer sums than one panel has.
TEST_P(MatMulTest, EveryLayoutOfEvenShapes) {
  const std::vector<Extents> all = {
      {32, 64, 32}, {144, 128, 96}, {272, 192, 320}, {48, 4160, 32}, {48, 64, 4128}};
  for (const Extents& e : all) {
    for (int layout = 0; layout < 4; ++layout) {
      SCOPED_TRACE(::testing::Message() << e.m << "x" << e.n << "x" << e.k << " layout " << layout);
      const bool a_transposed = layout & 1, b_transposed = layout & 2;
      const Tensor a = random_.Normal(dtype(), a_transposed ? Shape{e.k, e.m} : Shape{e.m, e.k});
      const Tensor b = random_.Normal(dtype(), b_transposed ? Shape{e.n, e.k} : Shape{e.k, e.n});
      const Tensor bias = random_.Normal(dtype(), {e.n});
      const Tensor start = random_.Normal(DType::kF32, {e.m, e.n});
      const Tensor frame = random_.Normal(dtype(), {e.m, e.n + 32});
      const TensorView a_view = a_transposed ? a.view().Transpose(0, 1) : a.view();
      const TensorView b_view = b_transposed ? b.view().Transpose(0, 1) : b.view();
      ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
        std::vector<Output> outputs;
        outputs.push_back({"with bias", Tensor(output, {e.m, e.n})});
        outputs.push_back({"accumulated in fp32", Converted(start, statistic)});
        outputs.push_back({"accumulated in a frame", Converted(frame, output)});
        backend.MatMul({a_view, b_view, outputs[0].tensor, false, bias});
        backend.MatMul({a_view, b_view, outputs[1].tensor, true});
        backend.MatMul(
            {a_view, b_view, outputs[2].tensor.view().Slice(1, 16, e.n + 16), true, bias});
        return outputs;
      });
    }
  }
}

TEST_P(MatMulTest, AddsBiasAndAccumulates) {
  const int64_t m = 130, n = 600, k = 40;
  const Tensor a = random_.Normal(dtype(), {m, k}), b = random_.Normal(dtype(), {k, n});
  const Tensor bias = random_.Normal(dtype(), {n}), start = random_.Normal(dtype(), {m, n});
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"with bias", Tensor(output, {m, n})});
    outputs.push_back({"accumulated", Converted(start, output)});
    outputs.push_back({"both", Converted(start, output)});
    backend.MatMul({a, b, outputs[0].tensor, false, bias});
    backend.MatMul({a, b, outputs[1].tensor, true});
    backend.MatMul({a, b, outputs[2].tensor, true, bias});
    return outputs;
  });
}

// The shape of weight gradients: dW[N,K] += dY[R,N]^T X[R,K], in fp32 whatever the operands.
TEST_P(MatMulTest, AccumulatesInFp32) {
  const int64_t rows = 96, n = 200, k = 130;
  const Tensor d_y = random_.Normal(dtype(), {rows, n}), x = random_.Normal(dtype(), {rows, k});
  const Tensor start = random_.Normal(DType::kF32, {n, k});
  ExpectMatchesReference([&](Backend& backend, DType, DType statistic) {
    std::vector<Output> outputs;
    outputs.push_back({"d_w", Converted(start, statistic)});
    for (int i = 0; i < 2; ++i) {
      backend.MatMul({d_y.view().Transpose(0, 1), x, outputs[0].tensor, /*accumulate=*/true});
    }
    return outputs;
  });
}

TEST_P(MatMulTest, ReadsAndWritesPartsOfWiderBuffers) {
  const Tensor a = random_.Normal(dtype(), {50, 90}), b = random_.Normal(dtype(), {300, 64});
  const Tensor frame = random_.Normal(dtype(), {50, 320});
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"frame", Converted(frame, output)});
    backend.MatMul({a.view().Slice(1, 13, 77), b.view().Transpose(0, 1),
                    outputs[0].tensor.view().Slice(1, 11, 311), /*accumulate=*/false});
    return outputs;
  });
}

TEST_P(MatMulTest, OneRowOrColumnOfAWiderBuffer) {
  const Tensor a = random_.Normal(dtype(), {7, 40}), b = random_.Normal(dtype(), {7, 30});
  ExpectMatchesReference([&](Backend& backend, DType output, DType) {
    std::vector<Output> outputs;
    outputs.push_back({"outer product", Tensor(output, {40, 30})});
    outputs.push_back({"row", Tensor(output, {1, 30})});
    backend.MatMul({a.view().Slice(0, 3, 4).Transpose(0, 1), b.view().Slice(0, 2, 3),
                    outputs[0].tensor, false});
    backend.MatMul({a.view().Slice(1, 5, 6).Transpose(0, 1), b, outputs[1].tensor, false});
    return outputs;
  });
}

TEST_P(MatMulTest, DoesNotDependOnAddresses) {
  const int64_t m = 65, n = 190, k = 3000;
  const Tensor a = random_.Normal(dtype(), {m, k}), b = random_.Normal(dtype(), {n, k});
  const std::unique_ptr<Backend> backend = MakeCpuBackend(2);
  const int64_t size = ElementSize(dtype());
  Tensor expected;
  for (int64_t shift : {0, 1, 5, 32}) {
    // Padding of a few elements before each operand: different alignments, the same numbers.
    const Tensor room_a(dtype(), {m * k + shift}), room_b(dtype(), {n * k + shift});
    const Tensor room_c(dtype(), {m * n + shift});
    const TensorView a_view(room_a.view().as<char>() + shift * size, dtype(), {m, k});
    const TensorView b_view(room_b.view().as<char>() + shift * size, dtype(), {n, k});
    const TensorView c_view(room_c.view().as<char>() + shift * size, dtype(), {m, n});
    backend->Copy({a, a_view});
    backend->Copy({b, b_view});
    backend->MatMul({a_view, b_view.Transpose(0, 1), c_view, false});
    if (shift == 0) {
      expected = Cloned(c_view);
    } else {
      testing::ExpectBitwiseEqual(c_view, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MatMulTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
