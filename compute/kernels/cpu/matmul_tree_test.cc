// MatMulTree: the sum of products equals that of separate products, bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::ExpectBitwiseEqual;

struct Extents {
  int64_t m, n, k;
};

class MatMulTreeTest : public KernelTest {
 protected:
  // The terms of one sum. Layouts: bit 0, a is transposed; bit 1, b.
  struct Terms {
    std::vector<Tensor> memory;
    std::vector<MatMulOperands> operands;
  };

  Terms MakeTerms(const Extents& e, int layout, int count) {
    Terms terms;
    const bool a_transposed = layout & 1, b_transposed = layout & 2;
    for (int i = 0; i < count; ++i) {
      Tensor a = random_.Normal(dtype(), a_transposed ? Shape{e.k, e.m} : Shape{e.m, e.k});
      Tensor b = random_.Normal(dtype(), b_transposed ? Shape{e.n, e.k} : Shape{e.k, e.n});
      terms.operands.push_back({a_transposed ? a.view().Transpose(0, 1) : a.view(),
                                b_transposed ? b.view().Transpose(0, 1) : b.view()});
      terms.memory.push_back(std::move(a));
      terms.memory.push_back(std::move(b));
    }
    return terms;
  }

  // T(0, n), one operation after the other, in the first columns of wider buffers.
  static Tensor SumOfSeparateProducts(Backend& backend, std::span<const MatMulOperands> products,
                                      int64_t buffer_columns) {
    const int64_t m = products[0].a.dim(0), n = products[0].b.dim(1);
    if (products.size() == 1) {
      Tensor buffer(DType::kF32, {m, buffer_columns});
      backend.MatMul({products[0].a, products[0].b, buffer.view().Slice(1, 0, n), false});
      return buffer;
    }
    const size_t middle = std::bit_floor(products.size() - 1);
    Tensor sum = SumOfSeparateProducts(backend, products.first(middle), buffer_columns);
    backend.Add(
        {sum, SumOfSeparateProducts(backend, products.subspan(middle), buffer_columns), sum});
    return sum;
  }

  void ExpectSumOfSeparateProducts(const Extents& e, int layout, int count) {
    SCOPED_TRACE(::testing::Message()
                 << count << " of " << e.m << "x" << e.n << "x" << e.k << " layout " << layout);
    const Terms terms = MakeTerms(e, layout, count);
    for (int64_t columns : {e.n, e.n + 7}) {
      const Tensor expected = SumOfSeparateProducts(*one_thread_, terms.operands, columns);
      const Tensor sum(DType::kF32, {e.m, columns});
      backends_[count % 2]->MatMulTree({terms.operands, sum.view().Slice(1, 0, e.n)});
      ExpectBitwiseEqual(sum, expected, columns == e.n ? "dense" : "part of a wider buffer");
    }
  }

  const std::unique_ptr<Backend> backends_[2] = {MakeCpuBackend(1), MakeCpuBackend(3)};
  Backend* const one_thread_ = backends_[0].get();
  Backend* const three_threads_ = backends_[1].get();
};

TEST_P(MatMulTreeTest, MatchesReference) {
  for (int count : {1, 2, 5}) {
    const Extents e = {70, 130, 96};
    const Terms terms = MakeTerms(e, /*layout=*/2, count);
    ExpectMatchesReference([&](Backend& backend, DType, DType statistic) {
      std::vector<Output> outputs;
      outputs.push_back({"c", Tensor(statistic, {e.m, e.n})});
      backend.MatMulTree({terms.operands, outputs[0].tensor});
      return outputs;
    });
  }
}

TEST_P(MatMulTreeTest, HasTheBitsOfSeparateProducts) {
  for (const Extents& e : {Extents{1, 1, 1}, Extents{3, 1, 9}, Extents{1, 70, 31},
                           Extents{17, 33, 65}, Extents{257, 70, 31}, Extents{65, 513, 64}}) {
    for (int layout = 0; layout < 4; ++layout) {
      for (int count : {2, 3}) ExpectSumOfSeparateProducts(e, layout, count);
    }
  }
}

// Multiples of the sizes that matrix units prefer, with tails, in more than one tile, group of
// rows, panel of columns and part of a long sum.
TEST_P(MatMulTreeTest, HasTheBitsOfSeparateProductsInEvenShapes) {
  for (const Extents& e : {Extents{32, 64, 32}, Extents{144, 128, 96}, Extents{528, 192, 128},
                           Extents{32, 4160, 32}, Extents{48, 64, 4128}}) {
    for (int layout = 0; layout < 4; ++layout) {
      ExpectSumOfSeparateProducts(e, layout, 2);
      if (e.k < 1000) ExpectSumOfSeparateProducts(e, layout, 7);
    }
  }
}

TEST_P(MatMulTreeTest, EveryNumberOfTerms) {
  for (int count = 1; count <= 9; ++count) {
    ExpectSumOfSeparateProducts({40, 96, 33}, /*layout=*/0, count);
    ExpectSumOfSeparateProducts({64, 128, 32}, /*layout=*/2, count);
  }
}

// Two processes that add their results: the sum of four terms equals the sum of two sums of two.
TEST_P(MatMulTreeTest, DoesNotDependOnHowTermsAreDealtOut) {
  const Extents e = {256, 192, 96};
  const Terms terms = MakeTerms(e, /*layout=*/2, 4);
  const std::span<const MatMulOperands> all = terms.operands;
  const Tensor whole(DType::kF32, {e.m, e.n}), left(DType::kF32, {e.m, e.n});
  const Tensor right(DType::kF32, {e.m, e.n});
  one_thread_->MatMulTree({all, whole});
  one_thread_->MatMulTree({all.first(2), left});
  three_threads_->MatMulTree({all.last(2), right});
  one_thread_->Add({left, right, left});
  ExpectBitwiseEqual(left, whole);
}

TEST_P(MatMulTreeTest, DoesNotDependOnAddresses) {
  const int64_t m = 160, n = 256, k = 352, size = ElementSize(dtype());
  const Terms terms = MakeTerms({m, n, k}, /*layout=*/2, 2);
  const Tensor expected(DType::kF32, {m, n});
  one_thread_->MatMulTree({terms.operands, expected});
  for (int64_t shift : {1, 5, 16, 64}) {
    std::vector<Tensor> rooms;
    std::vector<MatMulOperands> moved;
    const auto move = [&](const Tensor& x, const Shape& shape) {
      rooms.emplace_back(dtype(), Shape{x.view().elements() + shift});
      const TensorView view(rooms.back().view().as<char>() + shift * size, dtype(), shape);
      one_thread_->Copy({x, view});
      return view;
    };
    for (int i = 0; i < 2; ++i) {
      const TensorView a = move(terms.memory[2 * i], {m, k});
      moved.push_back({a, move(terms.memory[2 * i + 1], {n, k}).Transpose(0, 1)});
    }
    const Tensor room(DType::kF32, {m * n + shift});
    const TensorView sum(room.view().as<float>() + shift, DType::kF32, {m, n});
    three_threads_->MatMulTree({moved, sum});
    ExpectBitwiseEqual(sum, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MatMulTreeTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
