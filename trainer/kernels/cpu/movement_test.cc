// Copy, Fill, Add, Scale, SumRows, embeddings and positions, Sum and SumOfSquares.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/kernels/backend.h"
#include "trainer/kernels/cpu/kernel_test.h"
#include "trainer/kernels/testing/random_tensors.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;

class MovementTest : public KernelTest {};

TEST_P(MovementTest, CopiesAnyStridesBetweenAnyDTypes) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(3);
  for (DType from : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Tensor x = random_.Normal(from, {3, 37, 41, 5});
    const TensorView part = x.view().Slice(1, 2, 35).Slice(2, 1, 40);
    for (const TensorView& view :
         {x.view(), part, part.Transpose(1, 3), part.Transpose(0, 2).Transpose(1, 3)}) {
      const Tensor actual(dtype(), view.shape()), expected(dtype(), view.shape());
      backend->Copy(view, actual);
      reference_->Copy(view, expected);
      ExpectBitwiseEqual(actual, expected);
      const Tensor wide(dtype(), {view.dim(0), view.dim(1), view.dim(3), view.dim(2) + 3});
      const TensorView target = wide.view().Slice(3, 1, view.dim(2) + 1).Transpose(2, 3);
      backend->Copy(view, target);
      ExpectBitwiseEqual(target, expected);
    }
  }
  const Tensor ids = random_.Ids({1000}, -5, 5), copy(DType::kI32, {1000});
  backend->Copy(ids, copy);
  ExpectBitwiseEqual(copy, ids);
}

TEST_P(MovementTest, RoundsToNearestEvenAndKeepsNaN) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const Tensor x(DType::kF32, {1 << 16}), narrow(DType::kBF16, {1 << 16});
  // Every upper half with lower halves around the tie.
  for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    for (uint32_t i = 0; i < (1 << 16); ++i) {
      x.view().as<float>()[i] = std::bit_cast<float>((i << 16) | low);
    }
    backend->Copy(x, narrow);
    for (int64_t i = 0; i < (1 << 16); ++i) {
      ASSERT_EQ(narrow.view().as<BFloat16>()[i].bits, BFloat16(x.view().as<float>()[i]).bits) << i;
    }
  }
}

TEST_P(MovementTest, DoubleToBFloat16RoundsOnce) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const double ulp = 1.0 / 128;
  const Tensor x(DType::kF64, {4}), actual(DType::kBF16, {4}), expected(DType::kBF16, {4});
  const double values[] = {1 + ulp / 2 + 1e-12, 1 + ulp * 1.5 - 1e-12, -1 - ulp / 2 - 1e-12,
                           1 + ulp / 2};
  for (int i = 0; i < 4; ++i) x.view().as<double>()[i] = values[i];
  backend->Copy(x, actual);
  reference_->Copy(x, expected);
  ExpectBitwiseEqual(actual, expected);
}

TEST_P(MovementTest, FillsAndScalesAndAdds) {
  const Tensor a = random_.Normal(dtype(), {7, 5001}), b = random_.Normal(dtype(), {7, 5001});
  ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
    std::vector<Output> outputs;
    outputs.push_back({"filled", Tensor(output, {20, 13})});
    outputs.push_back({"scaled", Converted(a, output)});
    outputs.push_back({"added", Tensor(output, {7, 5001})});
    outputs.push_back({"in place", Converted(a, output)});
    outputs.push_back({"mixed", Converted(a, statistic)});
    backend.Fill(outputs[0].tensor, -1);
    backend.Fill(outputs[0].tensor.view().Slice(1, 3, 9), 0.375);
    backend.Scale(outputs[1].tensor, -0.3);
    backend.Add(a, b, outputs[2].tensor);
    backend.Add(outputs[3].tensor, b, outputs[3].tensor);
    backend.Add(outputs[4].tensor, b, outputs[4].tensor);
    return outputs;
  });
}

TEST_P(MovementTest, SumsRows) {
  for (const Shape& shape : {Shape{1, 1}, Shape{5, 77}, Shape{300, 131}}) {
    const Tensor x = random_.Normal(dtype(), {shape[0], shape[1] + 4});
    const TensorView part = x.view().Slice(1, 3, shape[1] + 3);
    const Tensor start = random_.Normal(DType::kF32, {shape[1]});
    ExpectMatchesReference([&](Backend& backend, DType, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"sum", Converted(start, statistic)});
      outputs.push_back({"accumulated", Converted(start, statistic)});
      backend.SumRows(part, outputs[0].tensor, false);
      backend.SumRows(part, outputs[1].tensor, true);
      return outputs;
    });
  }
}

TEST_P(MovementTest, Embeddings) {
  const int64_t vocabulary = 11, columns = 77, rows = 130;
  const Tensor table = random_.Normal(dtype(), {vocabulary, columns});
  const Tensor d_out = random_.Normal(dtype(), {rows, columns});
  const Tensor start = random_.Normal(DType::kF32, {vocabulary, columns});
  const Tensor ids = random_.Ids({rows}, 0, 20);  // some belong to another shard
  ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
    std::vector<Output> outputs;
    outputs.push_back({"out", random_.Normal(output, {rows, columns})});
    outputs.push_back({"d_table", Converted(start, statistic)});
    backend.EmbeddingForward(table, ids, 4, outputs[0].tensor);
    backend.EmbeddingBackward(d_out, ids, 4, outputs[1].tensor);
    return outputs;
  });
}

TEST_P(MovementTest, Positions) {
  const int64_t sequence = 9, columns = 50, rows = 36;
  const Tensor table = random_.Normal(dtype(), {sequence + 3, columns});
  const Tensor x = random_.Normal(dtype(), {rows, columns});
  const Tensor start = random_.Normal(DType::kF32, {sequence, columns});
  ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
    std::vector<Output> outputs;
    outputs.push_back({"x", Converted(x, output)});
    outputs.push_back({"d_table", Converted(start, statistic)});
    outputs.push_back({"accumulated", Converted(start, statistic)});
    // The table must have the dtype of x on the CPU.
    backend.AddPositions(Converted(table, output), sequence, outputs[0].tensor);
    backend.AddPositionsBackward(x, sequence, outputs[1].tensor, false);
    backend.AddPositionsBackward(x, sequence, outputs[2].tensor, true);
    return outputs;
  });
}

TEST_P(MovementTest, SumsOfWholeTensors) {
  for (int64_t count : {0, 1, 31, 65536, 65537, 400001}) {
    const Tensor x = random_.Normal(dtype(), {count}, 0.25);
    double first[2] = {};
    for (int threads = 1; threads <= 4; ++threads) {
      const std::unique_ptr<Backend> backend = MakeCpuBackend(threads);
      const double sums[2] = {backend->Sum(x), backend->SumOfSquares(x)};
      if (threads > 1) {
        EXPECT_EQ(sums[0], first[0]);
        EXPECT_EQ(sums[1], first[1]);
        continue;
      }
      first[0] = sums[0];
      first[1] = sums[1];
      EXPECT_NEAR(sums[0], reference_->Sum(x), 1e-9 * (1 + count));
      EXPECT_NEAR(sums[1], reference_->SumOfSquares(x), 1e-11 * (1 + count));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MovementTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
