// Matrix products whose last step is GELU, and those that sum the rows of a factor, too: as one
// operation of cuBLASLt, and as two.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/cuda/testing/test_device.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"

namespace tessera::cuda {
namespace {

using testing::Cloned;
using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

// Products of bf16 whose last step is GELU. The operands lie at any addresses, with gaps between
// rows of the factors.
class GeluProductTest : public ::testing::Test {
 protected:
  struct Results {
    Tensor pre, act, d_pre;
  };

  TensorView At(const Tensor& x, int64_t shift) {
    const TensorView from = x;
    memory_.emplace_back(from.dtype(), Shape{from.elements() + shift});
    const int64_t bytes = shift * ElementSize(from.dtype());
    const TensorView to(memory_.back().view().as<char>() + bytes, from.dtype(), from.shape());
    reference_->Copy({from, to});
    return to;
  }

  Results Run(Backend& backend, int64_t shift) {
    const TensorView pre = At(pre_, shift), act = At(pre_, shift), d_pre = At(pre_, shift);
    backend.MatMulGelu({At(a_, shift), At(b_, shift), At(bias_, shift), pre, act});
    backend.MatMulGeluBackward({At(a_, shift), At(b_, shift), pre, d_pre});
    EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
    return {Cloned(pre), Cloned(act), Cloned(d_pre)};
  }

  void Draw(DType dtype, int64_t m, int64_t n, int64_t k) {
    a_ = random_.Normal(dtype, {m, k});
    b_ = random_.Normal(dtype, {k, n});
    bias_ = random_.Normal(dtype, {n});
    pre_ = random_.Normal(dtype, {m, n});
  }

  static void ExpectSame(const Results& actual, const Results& expected) {
    ExpectBitwiseEqual(actual.pre, expected.pre, "pre");
    ExpectBitwiseEqual(actual.act, expected.act, "act");
    ExpectBitwiseEqual(actual.d_pre, expected.d_pre, "d_pre");
  }

  testing::RandomTensors random_{20261125};
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  Tensor a_, b_, bias_, pre_;
  std::vector<Tensor> memory_;
};

TEST_F(GeluProductTest, AreOneProductWhoseBitsDoNotDependOnAddresses) {
  Draw(DType::kBF16, 6, 24, 10);
  TestDevice device;
  const Results first = Run(*device.backend, 0);
  EXPECT_EQ(device.cublaslt->gelu_products(), 2);
  EXPECT_EQ(device.cublaslt->products(), 2);
  for (const int64_t shift : {1, 4, 8}) ExpectSame(Run(*device.backend, shift), first);
  EXPECT_EQ(device.cublaslt->gelu_products(), 8);
  EXPECT_EQ(device.cublaslt->searches(), 2);
  // The GELU is computed from the sum before rounding; `pre` is the rounded sum.
  const Tensor pre(DType::kF32, {6, 24}), act(DType::kF32, {6, 24});
  reference_->MatMulGelu({a_, b_, bias_, pre, act});
  ExpectClose(first.pre, pre, {.relative = 0x1p-8, .of_maximum = 0x1p-16});
  ExpectClose(first.act, act, {.relative = 0x1p-8, .of_maximum = 0x1p-16});
}

TEST_F(GeluProductTest, HaveTheBitsOfTwoOperationsWhereTheyAreNotOne) {
  const auto apart = [&](Backend& backend) {
    Results results = {Tensor(a_.view().dtype(), pre_.view().shape()),
                       Tensor(a_.view().dtype(), pre_.view().shape()),
                       Tensor(a_.view().dtype(), pre_.view().shape())};
    backend.MatMul({a_, b_, results.pre, false, bias_});
    backend.GeluForward({results.pre, results.act});
    backend.MatMul({a_, b_, results.d_pre, false});
    backend.GeluBackward({results.d_pre, results.pre, results.d_pre});
    EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
    return results;
  };
  const auto expect_apart = [&](const FakeCublasLtOptions& options) {
    TestDevice device(0, options);
    ExpectSame(Run(*device.backend, 0), apart(*device.backend));
    ExpectSame(Run(*device.backend, 1), apart(*device.backend));
    EXPECT_EQ(device.cublaslt->gelu_products(), 0);
    // Whether there is an algorithm is asked once.
    EXPECT_EQ(device.cublaslt->searches(), options.no_gelu ? 4 : 2);
  };
  Draw(DType::kBF16, 6, 24, 10);
  expect_apart({.no_gelu = true});
  Draw(DType::kBF16, 6, 20, 10);  // rows of 40 bytes
  expect_apart({});
  Draw(DType::kF32, 6, 24, 10);
  expect_apart({});
}

// The gradient of the bias comes from the pass over memory that multiplies by GELU's gradient, if
// that is not the product's last step.
TEST_F(GeluProductTest, TheBiasIsSummedInOnePassWithTheBitsOfItsOwn) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t columns : {24, 20, 13}) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(absl::StrCat(std::string(DTypeName(dtype)), " ", columns, " ", accumulate));
        Draw(dtype, 50, columns, 10);
        TestDevice device(0, {}, {.gelu_gradient = false});
        const auto run = [&](const TensorView& d_bias, const TensorView& passed) {
          const Tensor d_pre(dtype, {50, columns});
          reference_->Fill({d_bias, 0.5});
          const bool summed =
              device.backend->MatMulGeluBackward({a_, b_, pre_, d_pre, passed, accumulate});
          EXPECT_EQ(summed, !passed.empty());
          if (!summed) device.backend->SumRows({d_pre, d_bias, accumulate});
          EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
          return Cloned(d_pre);
        };
        const Tensor together(DType::kF32, {columns}), apart(DType::kF32, {columns});
        ExpectBitwiseEqual(run(together, together), run(apart, {}), "d_pre");
        ExpectBitwiseEqual(together, apart, "d_bias");
        EXPECT_EQ(device.cublaslt->gelu_products(), 0);
      }
    }
  }
}

TEST_F(GeluProductTest, TheBiasIsLeftToTheCallerWhereTheProductHasTheGradient) {
  Draw(DType::kBF16, 6, 24, 10);
  TestDevice device;
  const Tensor d_pre(DType::kBF16, {6, 24}), d_bias(DType::kF32, {24}), before = Cloned(d_bias);
  EXPECT_FALSE(device.backend->MatMulGeluBackward({a_, b_, pre_, d_pre, d_bias}));
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  EXPECT_EQ(device.cublaslt->gelu_products(), 1);
  ExpectBitwiseEqual(d_bias, before);
}

// Another error than that there is no algorithm does not hide behind the two operations.
TEST_F(GeluProductTest, ASearchThatFailsIsReported) {
  Draw(DType::kBF16, 6, 24, 10);
  TestDevice device(0, {.no_gelu_search = true});
  const Tensor pre(DType::kBF16, {6, 24}), act(DType::kBF16, {6, 24});
  device.backend->MatMulGelu({a_, b_, bias_, pre, act});
  const absl::Status status = device.backend->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "CUBLAS_STATUS_EXECUTION_FAILED")) << status;
}

TEST_F(GeluProductTest, EmptySums) {
  Draw(DType::kBF16, 6, 24, 0);
  TestDevice device;
  const Results results = Run(*device.backend, 0);
  const Tensor expected(DType::kBF16, {6, 24}), act(DType::kBF16, {6, 24});
  reference_->MatMulGelu({a_, b_, bias_, expected, act});
  ExpectBitwiseEqual(results.pre, expected);
}

// The gradients of a linear layer's weight and bias: R rows, of `in` and of `out` columns, of bf16.
class SumsProductTest : public ::testing::Test {
 protected:
  struct Results {
    TensorView weight, bias;
  };

  // The memory of `count` elements that begin `shift` elements from one that is well aligned.
  TensorView At(DType dtype, const Shape& shape, int64_t shift) {
    memory_.emplace_back(dtype, Shape{ElementCount(shape) + shift});
    const int64_t bytes = shift * ElementSize(dtype);
    return {memory_.back().view().as<char>() + bytes, dtype, shape};
  }
  TensorView At(const TensorView& from, int64_t shift) {
    const TensorView to = At(from.dtype(), from.shape(), shift);
    reference_->Copy({from, to});
    return to;
  }

  // Adds to 0.5, or overwrites it.
  Results Run(Backend& backend, bool in_out, bool accumulate, int64_t shift = 0) {
    const TensorView x = At(x_, shift), d_y = At(d_y_, shift);
    const Shape weight = in_out ? Shape{x.dim(1), d_y.dim(1)} : Shape{d_y.dim(1), x.dim(1)};
    const Results results = {At(DType::kF32, weight, shift), At(DType::kF32, {d_y.dim(1)}, shift)};
    for (const TensorView& result : {results.weight, results.bias}) reference_->Fill({result, 0.5});
    backend.MatMulSums({(in_out ? x : d_y).Transpose(0, 1), in_out ? d_y : x, results.weight,
                        results.bias, in_out, accumulate});
    EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
    return results;
  }

  static void ExpectSame(const Results& actual, const Results& expected) {
    ExpectBitwiseEqual(actual.weight, expected.weight, "weight");
    ExpectBitwiseEqual(actual.bias, expected.bias, "bias");
  }

  testing::RandomTensors random_{20261129};
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  Tensor x_ = random_.Normal(DType::kBF16, {50, 24}), d_y_ = random_.Normal(DType::kBF16, {50, 16});
  std::vector<Tensor> memory_;
};

TEST_F(SumsProductTest, AreOneProductWhoseBitsDoNotDependOnAddresses) {
  TestDevice device(0, {}, {.sums = true});
  int64_t products = 0;
  for (const bool in_out : {false, true}) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(absl::StrCat(in_out, " ", accumulate));
      const Results first = Run(*device.backend, in_out, accumulate);
      for (const int64_t shift : {1, 4, 8}) {
        ExpectSame(Run(*device.backend, in_out, accumulate, shift), first);
      }
      products += 4;
      EXPECT_EQ(device.cublaslt->sums_products(), products);
      const Results expected = Run(*reference_, in_out, accumulate);
      ExpectClose(first.weight, expected.weight, {.relative = 1e-5, .of_maximum = 1e-5});
      ExpectClose(first.bias, expected.bias, {.relative = 1e-5, .of_maximum = 1e-5});
    }
  }
  EXPECT_EQ(device.cublaslt->products(), products);
  EXPECT_EQ(device.cublaslt->searches(), 2);
}

TEST_F(SumsProductTest, HaveTheBitsOfTwoOperationsWhereTheyAreNotOne) {
  const auto expect_apart = [&](const FakeCublasLtOptions& options, const ProductChoices& choices) {
    TestDevice device(0, options, choices);
    for (const bool in_out : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const Results actual = Run(*device.backend, in_out, accumulate);
        const Tensor weight = Cloned(actual.weight), bias = Cloned(actual.bias);
        const Results expected = {weight, bias};
        for (const TensorView& result : {expected.weight, expected.bias}) {
          reference_->Fill({result, 0.5});
        }
        device.backend->MatMul({(in_out ? x_ : d_y_).view().Transpose(0, 1), in_out ? d_y_ : x_,
                                expected.weight, accumulate});
        device.backend->SumRows({d_y_, expected.bias, accumulate});
        ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
        ExpectSame(actual, expected);
      }
    }
    EXPECT_EQ(device.cublaslt->sums_products(), 0);
    // Whether there is an algorithm is asked once.
    EXPECT_EQ(device.cublaslt->searches(), options.no_sums ? 4 : 2);
  };
  expect_apart({}, {});  // no GPU has run it yet
  expect_apart({.no_sums = true}, {.sums = true});
  expect_apart({.version = 120303}, {.sums = true});
  x_ = random_.Normal(DType::kF32, {50, 24});
  d_y_ = random_.Normal(DType::kF32, {50, 16});
  expect_apart({}, {.sums = true});
}

}  // namespace
}  // namespace tessera::cuda
