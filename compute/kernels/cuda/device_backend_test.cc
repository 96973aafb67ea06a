// Matrix products through the table of cuBLASLt's functions, errors, and the order of work on a
// stream that runs late.

#include "compute/kernels/cuda/device_backend.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/cuda/attention_memory.h"
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

// A matrix in a larger one, from element `shift` on, with `gap` elements between its rows; stored
// transposed or not.
struct Placement {
  bool transposed = false;
  int64_t shift = 0;
  int64_t gap = 0;
};

TensorView Placed(std::vector<Tensor>& owners, DType dtype, int64_t rows, int64_t columns,
                  const Placement& place) {
  const int64_t stored_rows = place.transposed ? columns : rows;
  const int64_t stored_columns = place.transposed ? rows : columns;
  owners.emplace_back(dtype, Shape{stored_rows + 1, stored_columns + place.shift + place.gap});
  const TensorView stored = owners.back()
                                .view()
                                .Slice(0, 0, stored_rows)
                                .Slice(1, place.shift, place.shift + stored_columns);
  return place.transposed ? stored.Transpose(0, 1) : stored;
}

class ProductTest : public ::testing::TestWithParam<std::tuple<DType, DType>> {
 protected:
  DType operands() const { return std::get<0>(GetParam()); }
  DType result() const { return std::get<1>(GetParam()); }

  TensorView Random(int64_t rows, int64_t columns, const Placement& place) {
    const TensorView to = Placed(owners_, operands(), rows, columns, place);
    reference_->Copy({random_.Normal(DType::kF32, {rows, columns}), to});
    return to;
  }

  void ExpectProduct(int64_t m, int64_t n, int64_t k, const Placement& at_a, const Placement& at_b,
                     const Placement& at_c, bool accumulate, bool has_bias) {
    const TensorView a = Random(m, k, at_a), b = Random(k, n, at_b);
    Tensor bias_memory(operands(), {n + 1});
    const TensorView bias =
        has_bias ? bias_memory.view().Slice(0, at_c.shift % 2, n + at_c.shift % 2) : TensorView();
    if (has_bias) reference_->Copy({random_.Normal(DType::kF32, {n}), bias});
    const Tensor start = random_.Normal(DType::kF32, {m, n});
    const TensorView c = Placed(owners_, result(), m, n, {.shift = at_c.shift, .gap = at_c.gap});
    const Tensor whole_before = Cloned(owners_.back());
    reference_->Copy({start, c});
    const Tensor expected(result(), {m, n});
    reference_->Copy({c, expected});
    reference_->MatMul({a, b, expected, accumulate, bias});
    device_.backend->MatMul({a, b, c, accumulate, bias});
    ASSERT_EQ(device_.backend->Synchronize(), absl::OkStatus());
    const double unit = result() == DType::kBF16 ? 0x1p-7 : 0x1p-20;
    ExpectClose(c, expected, {.relative = unit, .of_maximum = unit});
    // What lies around the result is as before.
    reference_->Copy({whole_before.view().Slice(0, 0, m).Slice(1, at_c.shift, at_c.shift + n), c});
    ExpectBitwiseEqual(owners_.back(), whole_before, "around c");
    owners_.clear();
  }

  TestDevice device_;
  testing::RandomTensors random_{20261123};
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  std::vector<Tensor> owners_;
};

// Every transposition with dense rows and gaps, at aligned and odd addresses.
TEST_P(ProductTest, EveryLayout) {
  for (int bits = 0; bits < 64; ++bits) {
    SCOPED_TRACE(bits);
    const int64_t shift_a = bits & 4 ? 3 : 0, shift_b = bits & 8 ? 1 : 0;
    const int64_t shift_c = bits & 16 ? 5 : 0, gap = bits & 32 ? 11 : 0;
    ExpectProduct(6, 24, 16, {.transposed = (bits & 1) != 0, .shift = shift_a, .gap = gap},
                  {.transposed = (bits & 2) != 0, .shift = shift_b, .gap = gap},
                  {.shift = shift_c, .gap = gap}, /*accumulate=*/(bits & 3) == 2,
                  /*has_bias=*/bits % 3 == 0);
  }
}

TEST_P(ProductTest, EveryShapeWithOnesAndOddSizes) {
  for (int64_t m : {1, 2, 7}) {
    for (int64_t n : {1, 3, 8}) {
      for (int64_t k : {1, 5, 16}) {
        SCOPED_TRACE(absl::StrCat(m, " x ", n, " x ", k));
        for (int bits = 0; bits < 4; ++bits) {
          ExpectProduct(m, n, k, {.transposed = (bits & 1) != 0}, {.transposed = (bits & 2) != 0},
                        {}, /*accumulate=*/false, /*has_bias=*/true);
          ExpectProduct(m, n, k, {.transposed = (bits & 1) != 0}, {.transposed = (bits & 2) != 0},
                        {}, /*accumulate=*/true, /*has_bias=*/false);
        }
      }
    }
  }
}

TEST_P(ProductTest, AnEmptyInnerDimIsASumOfNothing) {
  const Tensor a(operands(), {3, 0}), b(operands(), {0, 4}), bias(operands(), {4});
  const Tensor c(result(), {3, 4});
  reference_->Fill({bias, 2});
  reference_->Fill({c, 5});
  device_.backend->MatMul({a, b, c, /*accumulate=*/true, bias});
  ASSERT_EQ(device_.backend->Synchronize(), absl::OkStatus());
  EXPECT_EQ(testing::At(c, {2, 3}), 7);
  device_.backend->MatMul({a, b, c, /*accumulate=*/false, bias});
  ASSERT_EQ(device_.backend->Synchronize(), absl::OkStatus());
  EXPECT_EQ(testing::At(c, {0, 0}), 2);
}

// The bits of separate products that are added in the tree.
TEST_P(ProductTest, TreeHasTheBitsOfSeparateProducts) {
  for (int count : {1, 2, 3, 4, 5, 7, 8}) {
    for (int64_t gap : {0, 3}) {
      SCOPED_TRACE(absl::StrCat(count, " products, gap ", gap));
      std::vector<MatMulOperands> products;
      std::vector<Tensor> sums;
      for (int i = 0; i < count; ++i) {
        products.push_back({Random(5, 9, {}), Random(9, 6, {.transposed = true})});
        sums.emplace_back(DType::kF32, Shape{5, 6});
        device_.backend->MatMul({products.back().a, products.back().b, sums.back(), false, {}});
      }
      for (size_t step = 1; step < sums.size(); step *= 2) {
        for (size_t i = 0; i + step < sums.size(); i += 2 * step) {
          device_.backend->Add({sums[i], sums[i + step], sums[i]});
        }
      }
      const TensorView c = Placed(owners_, DType::kF32, 5, 6, {.gap = gap});
      device_.backend->MatMulTree({products, c});
      ASSERT_EQ(device_.backend->Synchronize(), absl::OkStatus());
      ExpectBitwiseEqual(c, sums[0]);
      owners_.clear();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ProductTest,
                         ::testing::Values(std::tuple(DType::kF32, DType::kF32),
                                           std::tuple(DType::kBF16, DType::kF32),
                                           std::tuple(DType::kBF16, DType::kBF16)),
                         [](const auto& info) {
                           return std::string(DTypeName(std::get<0>(info.param))) + "_to_" +
                                  std::string(DTypeName(std::get<1>(info.param)));
                         });

class DeviceBackendTest : public ::testing::Test {
 protected:
  testing::RandomTensors random_{20261124};
};

TEST_F(DeviceBackendTest, AnAlgorithmIsChosenOnceForEachKindOfProduct) {
  TestDevice device;
  const Tensor a = random_.Normal(DType::kF32, {8, 8}), b = random_.Normal(DType::kF32, {8, 8});
  const Tensor c(DType::kF32, {8, 8});
  for (int i = 0; i < 3; ++i) {
    device.backend->MatMul({a, b, c, /*accumulate=*/i > 0});
    device.backend->MatMul({a, b.view().Transpose(0, 1), c, false});
  }
  EXPECT_EQ(device.cublaslt->searches(), 2);
  EXPECT_EQ(device.cublaslt->products(), 6);
  EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
}

// The fake library proposes two usable algorithms: one with the whole workspace, one without any.
TEST_F(DeviceBackendTest, AnotherProposalThanTheFirstCanBeChosen) {
  const Tensor a = random_.Normal(DType::kF32, {8, 8});
  std::vector<int64_t> workspaces;
  for (const int proposal : {0, 1, 5}) {
    TestDevice device(0, {}, {.proposal = proposal});
    const Tensor c(DType::kF32, {8, 8});
    device.backend->MatMul({a, a, c, false});
    ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
    workspaces.push_back(device.cublaslt->last_workspace_bytes());
  }
  EXPECT_EQ(workspaces, (std::vector<int64_t>{1 << 12, 0, 0}));
}

TEST_F(DeviceBackendTest, AProductTakesItsMeasuredProposalAndOnlyIt) {
  const Tensor a = random_.Normal(DType::kF32, {8, 8}), b = random_.Normal(DType::kF32, {8, 8});
  const auto results = [&](const ProductChoices& choices) {
    TestDevice device(0, {.proposals = 3}, choices);
    const Tensor c(DType::kF32, {8, 8}), d(DType::kF32, {8, 8});
    device.backend->MatMul({a, b, c, false});
    device.backend->MatMul({a, b.view().Transpose(0, 1), d, false});
    EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
    return std::vector<std::vector<float>>{{c.view().as<float>(), c.view().as<float>() + 64},
                                           {d.view().as<float>(), d.view().as<float>() + 64}};
  };
  std::vector<std::vector<std::vector<float>>> by_proposal;
  for (const int proposal : {0, 1, 2}) by_proposal.push_back(results({.proposal = proposal}));
  ASSERT_NE(by_proposal[0], by_proposal[2]);
  const std::string name = "product [8,8] x [8,8]' of float32 to float32, strides 8, 8 and 8";
  for (const auto& [entry, taken] :
       std::map<int, size_t>{{0, 0}, {1, 1}, {2, 2}, {3, 0}, {99, 0}}) {
    const auto table = std::make_shared<const ProductProposals>(
        ProductProposals{{name, entry}, {"a product of another model", 1}});
    const auto found = results({.measured = table});
    EXPECT_EQ(found[0], by_proposal[0][0]) << entry;
    EXPECT_EQ(found[1], by_proposal[taken][1]) << entry;
  }
}

TEST_F(DeviceBackendTest, ProposalsThatAreMissingAreSaidOnce) {
  const auto table = std::make_shared<const ProductProposals>(
      ProductProposals{{"product [8,8] x [8,8] of float32 to float32, strides 8, 8 and 8", 7},
                       {"product [8,8]' x [8,8] of float32 to float32, strides 8, 8 and 8", 6}});
  TestDevice device(0, {}, {.measured = table});
  const Tensor a = random_.Normal(DType::kF32, {8, 8}), c(DType::kF32, {8, 8});
  ::testing::internal::CaptureStderr();
  device.backend->MatMul({a, a, c, false});
  device.backend->MatMul({a.view().Transpose(0, 1), a, c, false});
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string sentence = "the table of products names proposal ";
  const size_t at = said.find(sentence);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find(sentence, at + 1), std::string::npos) << said;
}

TEST_F(DeviceBackendTest, ProductsAreMeasuredByTheirNames) {
  FakeCublasLt* library = nullptr;
  std::map<std::string, std::vector<double>> measured;
  const ProductTimer timer = {.add =
                                  [&](const std::string& name, int proposal, double seconds) {
                                    EXPECT_EQ(proposal, 1);
                                    measured[name].push_back(seconds);
                                  },
                              .now = [&] { return library->seconds(); }};
  TestDevice device(
      0,
      {.seconds = [](int proposal,
                     int64_t c_bytes) { return static_cast<double>(proposal + c_bytes); }},
      {.proposal = 7, .timer = timer});
  library = device.cublaslt.get();
  const Tensor a = random_.Normal(DType::kBF16, {8, 8}), bias = random_.Normal(DType::kBF16, {8});
  const Tensor c(DType::kBF16, {8, 8}), d(DType::kF32, {8, 8}), pre(DType::kBF16, {8, 8});
  device.backend->Fill({c, 1});
  for (int i = 0; i < 2; ++i) device.backend->MatMul({a, a, c, false, bias});
  device.backend->MatMul({a, a, d, /*accumulate=*/true});
  device.backend->MatMulGelu({a, a, bias, pre, c});
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  EXPECT_EQ(measured,
            (std::map<std::string, std::vector<double>>{
                {"product [8,8] x [8,8] of bfloat16 to bfloat16 with a bias, strides 8, 8 and 8",
                 {129, 129}},
                {"product [8,8] x [8,8] of bfloat16 to float32, strides 8, 8 and 8", {257}},
                {"product [8,8] x [8,8] of bfloat16 to bfloat16 with a bias and GELU of stride 8, "
                 "strides 8, 8 and 8",
                 {129}}}));
}

// cuBLASLt has no algorithm for a bias in bf16 with odd strides, say.
TEST_F(DeviceBackendTest, ABiasThatTheProductCannotAddIsAddedToIt) {
  TestDevice device(0, {.no_bias = true});
  const Tensor a = random_.Normal(DType::kBF16, {17, 9}), b = random_.Normal(DType::kBF16, {9, 33});
  const Tensor bias = random_.Normal(DType::kBF16, {33});
  const Tensor c(DType::kBF16, {17, 33}), expected(DType::kF32, {17, 33});
  for (int i = 0; i < 2; ++i) device.backend->MatMul({a, b, c, false, bias});
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  EXPECT_EQ(device.cublaslt->searches(), 2);  // one with a bias, one without
  MakeReferenceBackend()->MatMul({a, b, expected, false, bias});
  ExpectClose(c, expected, {.relative = 0x1p-7, .of_maximum = 0x1p-8});
}

TEST_F(DeviceBackendTest, OperationsRunLaterAndInOrder) {
  TestDevice device;
  const Tensor a = random_.Normal(DType::kF32, {4, 4}), c(DType::kF32, {4, 4});
  device.backend->Fill({c, 3});
  device.backend->MatMul({a, a, c, /*accumulate=*/true});
  device.backend->Scale({c, 0});
  device.backend->MatMul({a, a, c, /*accumulate=*/true});
  EXPECT_EQ(testing::At(c, {0, 0}), 0);  // nothing has run
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  const Tensor expected(DType::kF32, {4, 4});
  MakeReferenceBackend()->MatMul({a, a, expected, false});
  ExpectClose(c, expected, {.relative = 1e-5, .of_maximum = 1e-6});
}

TEST_F(DeviceBackendTest, NumbersWaitForWhatIsQueued) {
  TestDevice device;
  const Tensor x(DType::kF32, {10000});
  device.backend->Fill({x, 2});
  EXPECT_EQ(device.backend->SumOfSquares({x}), 40000);
  EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
}

// So many that they do not fit the pinned memory, and one whose owner is gone.
TEST_F(DeviceBackendTest, NumbersForLaterDoNotWait) {
  TestDevice device;
  const Tensor x(DType::kF32, {1000});
  std::vector<std::shared_ptr<double>> sums;
  device.backend->Sum({x, std::make_shared<double>()});
  for (int i = 0; i < 1000; ++i) {
    device.backend->Fill({x, static_cast<double>(i)});
    sums.push_back(std::make_shared<double>(-1));
    device.backend->Sum({x, sums.back()});
    if (i == 100) EXPECT_EQ(device.runtime->calls().waits, 0);
  }
  EXPECT_EQ(device.runtime->calls().waits, 1000 * sizeof(double) / HostCopies::kLaterBytes);
  EXPECT_EQ(*sums.back(), -1);
  ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(*sums[i], 1000.0 * static_cast<double>(i));
}

// Scratch memory that grows is not given back before earlier operations have used it.
TEST_F(DeviceBackendTest, ScratchMemoryGrowsInTheOrderOfTheStream) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    TestDevice device(seed);
    std::vector<Tensor> outputs;
    std::vector<Tensor> inputs;
    for (int64_t columns = 8; columns <= 512; columns *= 4) {
      inputs.push_back(random_.Normal(DType::kF32, {40, columns}));
      outputs.emplace_back(DType::kF32, Shape{columns});
      device.backend->SumRows({inputs.back(), outputs.back(), false});
    }
    ASSERT_EQ(device.backend->Synchronize(), absl::OkStatus());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor expected(DType::kF32, outputs[i].view().shape());
      MakeReferenceBackend()->SumRows({inputs[i], expected, false});
      ExpectClose(outputs[i], expected, {.relative = 1e-5, .of_maximum = 1e-6});
    }
  }
}

TEST_F(DeviceBackendTest, ErrorsOfProductsNameTheProduct) {
  const Tensor a = random_.Normal(DType::kBF16, {4, 6}), b = random_.Normal(DType::kBF16, {6, 8});
  const Tensor c(DType::kF32, {4, 8});
  const std::string product = "product [4,6] x [6,8] of bfloat16 to float32, strides 6, 8 and 8: ";
  const auto error = [&](const FakeCublasLtOptions& options) {
    TestDevice device(0, options);
    device.backend->MatMul({a, b, c, false});
    device.backend->MatMul(
        {b.view().Transpose(0, 1), a.view().Transpose(0, 1), Tensor(DType::kF32, {8, 4}), false});
    return device.backend->Synchronize();
  };
  EXPECT_EQ(error({.fails = true}),
            absl::InternalError(product + "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"));
  EXPECT_EQ(error({.no_algorithm = true}),
            absl::UnimplementedError(
                product + "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED"));
  EXPECT_EQ(error({.only_unordered = true}),
            absl::UnimplementedError(product +
                                     "cuBLASLt has no algorithm with a fixed order of additions"));
}

TEST_F(DeviceBackendTest, ErrorsOfKernelsNameKernelOperationAndShapes) {
  TestDevice device;
  // More blocks than a grid has.
  const Tensor none(DType::kF32, {1});
  const int64_t rows = int64_t{1} << 31;
  const auto huge = [&](DType dtype, int64_t columns) {
    return TensorView(none.view().data(), dtype, {rows, columns});
  };
  device.backend->CrossEntropyStats(
      {huge(DType::kF32, 5), 5, huge(DType::kI32, 1).Reshape({rows}), 0, huge(DType::kF32, 3)});
  const Tensor x(DType::kF32, {8});
  device.backend->Fill({x, 2});
  const absl::Status status = device.backend->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "CrossEntropyRows: launched with a grid of"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "in CrossEntropyStats of [2147483648,5]"))
      << status;
  EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
}

// Compute capability 8.6 has the least shared memory in a block of those that are supported.
TEST_F(DeviceBackendTest, TheDevicesLimitOfSharedMemoryIsKept) {
  const Tensor x = random_.Normal(DType::kF32, {1, 4, 1, 128}), log_sum_exp(DType::kF32, {1, 1, 4});
  for (const int64_t kibibytes : {82, 99}) {
    TestDevice device({.shared_bytes_of_block = kibibytes << 10});
    const Tensor d_q(DType::kF32, {1, 4, 1, 128}), d_k = Cloned(d_q), d_v = Cloned(d_q);
    device.backend->AttentionBackward({{.scale = 1}, x, x, x, x, x, log_sum_exp, d_q, d_k, d_v});
    const absl::Status status = device.backend->Synchronize();
    EXPECT_EQ(status.ok(), kibibytes == 99) << status;
    if (!status.ok()) EXPECT_TRUE(absl::StrContains(status.message(), "bytes of shared memory"));
  }
  EXPECT_EQ(AttentionSharedBytes(DType::kF32, 128, /*backward=*/true), 84608);
  EXPECT_EQ(AttentionSharedBytes(DType::kBF16, 128, /*backward=*/true), 70144);
  for (const int64_t head : {65, 128}) {
    EXPECT_EQ(AttentionSharedBytes(DType::kBF16, head, /*backward=*/true, /*at_once=*/true),
              115216);
    EXPECT_EQ(AttentionSharedBytes(DType::kBF16, head, /*backward=*/false, /*at_once=*/true),
              AttentionBytes(AttentionPass::kForward, 128, 2));
  }
  // Two blocks of the backward pass at once, and three of the forward pass, with heads of 64 fit on
  // an A100, besides a KiB for each.
  constexpr int64_t kForward = AttentionBytes(AttentionPass::kForward, 64, 2);
  EXPECT_EQ(kForward, 36864);
  EXPECT_LE(3 * (kForward + 1024), 164 << 10);
  EXPECT_LE(2 * (AttentionBytes(AttentionPass::kBackwardAtOnce, 64, 2) + 1024), 164 << 10);
}

// The scratch memory that is announced (AttentionScratchBytes) is what one backward pass takes, and
// no kernel reads behind it.
TEST_F(DeviceBackendTest, AttentionTakesItsScratchMemory) {
  const Shape shape = {2, 40, 3, 64};
  const Tensor x = random_.Normal(DType::kBF16, shape), log_sum_exp(DType::kF32, {2, 3, 40});
  for (const ProductChoices& choices :
       {ProductChoices(), ProductChoices{.attention_at_once = true},
        ProductChoices{.attention_gradients_by_warpgroups = true}}) {
    TestDevice device(0, {}, choices);
    const int64_t before = device.context->allocated_bytes();
    const Tensor d_q(DType::kBF16, shape), d_k = Cloned(d_q), d_v = Cloned(d_q);
    device.backend->AttentionBackward({{.scale = 1}, x, x, x, x, x, log_sum_exp, d_q, d_k, d_v});
    EXPECT_EQ(device.backend->Synchronize(), absl::OkStatus());
    const bool at_once = choices.attention_at_once;
    const int64_t bytes = AttentionScratchBytes(2 * 3, 40, 64, at_once);
    EXPECT_EQ(bytes, 6 * 64 * 8 + (at_once ? 6 * 64 * 64 * 4 + 6 * 2 * 4 + 4 : 0));
    EXPECT_EQ(device.context->allocated_bytes() - before, (bytes + 255) / 256 * 256);
  }
}

}  // namespace
}  // namespace tessera::cuda
