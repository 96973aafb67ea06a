// Copy, Fill, Add, AddBias, Scale, SumRows, embeddings and positions, sums and sums of squares.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;

class MovementTest : public KernelTest {};

TEST_P(MovementTest, CopiesAnyStridesBetweenAnyDTypes) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
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
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x(DType::kF32, {1 << 16}), narrow(DType::kBF16, {1 << 16});
  // Every upper half, with lower halves around the tie.
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
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
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
    // On the CPU, the table must have the dtype of x.
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
    bool is_first = true;
    for (const BackendVariant& variant : VariantsUnderTest()) {
      const std::unique_ptr<Backend> backend = variant.make();
      const double sums[2] = {backend->Sum(x), backend->SumOfSquares(x)};
      if (!is_first && variant.same_bits) {
        EXPECT_EQ(sums[0], first[0]) << variant.name;
        EXPECT_EQ(sums[1], first[1]) << variant.name;
        continue;
      }
      if (is_first) std::copy(std::begin(sums), std::end(sums), std::begin(first));
      is_first = false;
      EXPECT_NEAR(sums[0], reference_->Sum(x), 1e-9 * (1 + count));
      EXPECT_NEAR(sums[1], reference_->SumOfSquares(x), 1e-11 * (1 + count));
    }
  }
}

TEST_P(MovementTest, AddsBias) {
  for (const Shape& shape : {Shape{1, 1}, Shape{37, 131}, Shape{3, 20000}}) {
    const int64_t columns = shape[1];
    const Tensor x = random_.Normal(DType::kF32, {shape[0], columns + 5});
    const Tensor bias = random_.Normal(dtype(), {columns});
    ExpectMatchesReference([&](Backend& backend, DType output, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"out", random_.Normal(output, shape)});
      outputs.push_back({"without bias", random_.Normal(output, shape)});
      outputs.push_back({"in place", Converted(x.view().Slice(1, 2, columns + 2), statistic)});
      outputs.push_back({"part of wider rows", Tensor(output, {shape[0], columns + 9})});
      // The bias has the dtype of the output.
      const Tensor own_bias = Converted(bias, output), wide_bias = Converted(bias, statistic);
      const Tensor own_x = Converted(x, statistic);
      const TensorView from = own_x.view().Slice(1, 2, columns + 2);
      const TensorView in_place = outputs[2].tensor;
      backend.AddBias(from, own_bias, outputs[0].tensor);
      backend.AddBias(from, {}, outputs[1].tensor);
      backend.AddBias(in_place, {}, in_place);
      backend.AddBias(in_place, wide_bias, in_place);
      backend.AddBias(from, own_bias, outputs[3].tensor.view().Slice(1, 4, columns + 4));
      return outputs;
    });
  }
}

// The sum is rounded once.
TEST_P(MovementTest, BiasIsAddedBeforeRounding) {
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x = random_.Normal(DType::kF32, {9, 131}), bias = random_.Normal(dtype(), {131});
  const Tensor actual(dtype(), {9, 131}), expected(dtype(), {9, 131});
  backend->AddBias(x, bias, actual);
  const Tensor sum = Converted(x, DType::kF32);
  for (int64_t row = 0; row < 9; ++row) {
    const TensorView one = sum.view().Slice(0, row, row + 1).Reshape({131});
    backend->Add(one, bias, one);
  }
  backend->Copy(sum, expected);
  ExpectBitwiseEqual(actual, expected);
}

TEST_P(MovementTest, SumsOfSquaresByBlock) {
  for (const auto& [count, block] : {std::pair<int64_t, int64_t>{0, 256},
                                     {1, 256},
                                     {256, 256},
                                     {100003, 256},
                                     {70001, 1000},
                                     {301, 1},
                                     {500, 70000}}) {
    SCOPED_TRACE(::testing::Message() << count << " by " << block);
    const Tensor x = random_.Normal(dtype(), {count}, 0.25);
    std::vector<double> expected((count + block - 1) / block), first;
    reference_->SumOfSquaresByBlock(x, block, expected);
    for (const BackendVariant& variant : VariantsUnderTest()) {
      if (!variant.same_bits) continue;
      const std::unique_ptr<Backend> backend = variant.make();
      std::vector<double> sums(expected.size(), -1);
      backend->SumOfSquaresByBlock(x, block, sums);
      if (first.empty()) first = sums;
      EXPECT_EQ(sums, first) << variant.name;
    }
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(first[i], expected[i], 1e-13 * expected[i]) << i;
    }
  }
}

// The owner of some blocks computes the same sums as an owner of all.
TEST_P(MovementTest, SumsOfSquaresOfABlockDependOnItAlone) {
  const int64_t count = 100003, block = 256, blocks = (count + block - 1) / block;
  const std::unique_ptr<Backend> backend = MakeBackendUnderTest();
  const Tensor x = random_.Normal(dtype(), {count});
  std::vector<double> whole(blocks);
  backend->SumOfSquaresByBlock(x, block, whole);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, blocks}, {77, 300}}) {
    for (int64_t shift : {0, 1, 16}) {
      const TensorView from = x.view().Slice(0, begin * block, std::min(count, end * block));
      const Tensor room(dtype(), {from.elements() + shift});
      const TensorView part = room.view().Slice(0, shift, shift + from.elements());
      backend->Copy(from, part);
      std::vector<double> sums(end - begin);
      backend->SumOfSquaresByBlock(part, block, sums);
      EXPECT_EQ(sums, std::vector<double>(whole.begin() + begin, whole.begin() + end));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MovementTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
