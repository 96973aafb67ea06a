// EXACT numerics on the simulated device: every operation has the bits of processors in fp32.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/testing/simulated_backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/operation_cases.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using testing::CaseViews;
using testing::OperationCase;
constexpr DType kF32 = DType::kF32;

class ExactOperationsTest : public ::testing::Test {
 protected:
  // Returns the names of the outputs whose bits are not the CPU's.
  std::vector<std::string> OtherBits(const OperationCase& one, Backend& device) {
    const std::vector<Tensor> expected = RunCase(one, *cpu_), actual = RunCase(one, device);
    EXPECT_EQ(device.Synchronize(), absl::OkStatus()) << one.name;
    std::vector<std::string> names;
    for (size_t i = 0; i < expected.size(); ++i) {
      const TensorView a = actual[i], b = expected[i];
      if (std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) != 0) {
        names.push_back(absl::StrCat(one.operands[i].name, " of ", one.name));
      }
    }
    return names;
  }
  void ExpectSameBits(const OperationCase& one) {
    EXPECT_EQ(OtherBits(one, *device_), std::vector<std::string>());
  }

  testing::RandomTensors random_{20261129};
  std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1, /*exact=*/true);
  std::unique_ptr<Backend> device_ = MakeSimulatedBackend({}, DeviceNumerics::kExact);
};

TEST_F(ExactOperationsTest, EveryOperationHasTheBitsOfProcessors) {
  for (const OperationCase& one : OperationCases(kF32, random_)) ExpectSameBits(one);
}

// Which operations need kernels of their own; all others have these bits in FAST numerics, too.
TEST_F(ExactOperationsTest, SomeRoundOtherwiseInFastNumerics) {
  const std::unique_ptr<Backend> fast = MakeSimulatedBackend({}, DeviceNumerics::kExactProducts);
  std::set<std::string> others;
  for (const OperationCase& one : OperationCases(kF32, random_)) {
    const std::string name = one.name.substr(0, one.name.find(" ["));
    if (!others.contains(name) && !OtherBits(one, *fast).empty()) others.insert(name);
  }
  EXPECT_EQ(others, (std::set<std::string>{"Attention", "CrossEntropy", "CrossEntropy of shards",
                                           "CrossEntropyGradient", "GELU, SwiGLU of 3", "LayerNorm",
                                           "MatMul",  // with GELU
                                           "MatMulGeluBackward with a bias", "RmsNorm", "SumRows",
                                           "sum and norm"}));
}

// Random shapes, with tails of lanes and tiles, and values of all magnitudes.
class RandomShapesTest : public ExactOperationsTest {
 protected:
  // A matrix whose rows have other magnitudes; some are of subnormal numbers, or of zeros.
  Tensor Matrix(const Shape& shape) {
    Tensor x = random_.Normal(kF32, shape);
    const int64_t columns = shape.back(), rows = x.view().elements() / columns;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t kind = random_.Integer(0, 12);
      const float scale = kind == 0   ? 0.0f
                          : kind == 1 ? 1e-39f
                                      : std::ldexp(1.0f, static_cast<int>(kind) - 6);
      float* const at = x.view().as<float>() + row * columns;
      for (int64_t i = 0; i < columns; ++i) at[i] *= scale;
    }
    return x;
  }
  Tensor Vector(int64_t count) { return random_.Normal(kF32, {count}); }

  OperationCase Rows(int64_t rows, int64_t columns) {
    OperationCase one{.name = absl::StrCat("rows ", rows, " of ", columns)};
    one.In("x", Matrix({rows, 2 * columns})).In("d_out", Matrix({rows, columns}));
    one.In("weight", Vector(columns)).In("bias", Vector(columns));
    one.In("targets", random_.Ids({rows}, -2, columns + 2));
    one.In("a", Matrix({rows, 5})).In("b", Matrix({5, columns}));
    for (const char* name : {"norm", "d_x", "gelu", "d_gelu", "swiglu", "logits", "product"}) {
      one.Out(name, Matrix({rows, columns}));
    }
    one.Out("d_swiglu", Matrix({rows, 2 * columns}));
    for (const char* name : {"mean", "rstd", "rms", "losses"}) one.Out(name, Vector(rows));
    for (const char* name : {"d_weight", "d_bias", "d_rms", "sums"}) one.Out(name, Vector(columns));
    one.Out("stats", Tensor(kF32, {1, rows, 3})).Out("combined", Tensor(kF32, {rows, 3}));
    one.Out("squares", Tensor(DType::kF64, {1}));
    one.run = [columns](Backend& backend, const CaseViews& x, int64_t) {
      const TensorView half = x["x"].Slice(1, 0, columns);
      backend.LayerNormForward(
          {half, x["weight"], x["bias"], 1e-5, x["norm"], x["mean"], x["rstd"]});
      backend.LayerNormBackward({x["d_out"], half, x["weight"], x["mean"], x["rstd"], x["d_x"],
                                 true, x["d_weight"], x["d_bias"], true});
      backend.RmsNormForward({half, x["weight"], 1e-5, x["norm"], x["rms"]});
      backend.RmsNormBackward(
          {x["d_out"], half, x["weight"], x["rms"], x["d_x"], true, x["d_rms"], false});
      backend.GeluForward({half, x["gelu"]});
      backend.GeluBackward({x["d_out"], half, x["d_gelu"]});
      backend.SwiGluForward({x["x"], x["swiglu"]});
      backend.SwiGluBackward({x["d_out"], x["x"], x["d_swiglu"]});
      backend.SumRows({half, x["sums"], true});
      backend.MatMul({x["a"], x["b"], x["product"], true, x["bias"]});
      backend.CrossEntropyGradient(
          {x["logits"], columns, x["targets"], 0.25, x["stats"], x["combined"], x["losses"]});
      x["squares"].as<double>()[0] = backend.SumOfSquares({x["d_x"]});
    };
    return one;
  }

  OperationCase Heads(int64_t sequence, int64_t head_size, int64_t group, double dropout) {
    const Shape q = {2, sequence, 2 * group, head_size}, k = {2, sequence, 2, head_size};
    OperationCase one{.name = absl::StrCat("heads ", ShapeToString(q), " dropout ", dropout)};
    one.In("q", Matrix(q)).In("k", Matrix(k)).In("v", Matrix(k)).In("d_out", Matrix(q));
    one.Out("out", Matrix(q)).Out("log_sum_exp", Tensor(kF32, {2, 2 * group, sequence}));
    one.Out("d_q", Matrix(q)).Out("d_k", Matrix(k)).Out("d_v", Matrix(k));
    const AttentionOptions options = {
        .scale = 0.3,
        .dropout_probability = dropout,
        .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77},
        .first_sample = 3,
        .first_head = 2};
    one.run = [options](Backend& backend, const CaseViews& x, int64_t) {
      backend.AttentionForward({options, x["q"], x["k"], x["v"], x["out"], x["log_sum_exp"]});
      backend.AttentionBackward({options, x["d_out"], x["q"], x["k"], x["v"], x["out"],
                                 x["log_sum_exp"], x["d_q"], x["d_k"], x["d_v"]});
    };
    return one;
  }
};

TEST_F(RandomShapesTest, RowsHaveTheBitsOfProcessors) {
  for (int i = 0; i < 16; ++i) {
    ExpectSameBits(Rows(random_.Integer(1, 150), random_.Integer(1, i % 8 == 0 ? 5000 : 100)));
  }
}

TEST_F(RandomShapesTest, AttentionHasTheBitsOfProcessors) {
  for (int i = 0; i < 6; ++i) {
    ExpectSameBits(Heads(random_.Integer(1, 100), random_.Integer(1, 129), random_.Integer(1, 4),
                         i % 3 == 0 ? 0.2 : 0));
  }
}

// The order of a device's blocks and threads changes no bit.
TEST_F(RandomShapesTest, EveryOrderOfThreadsHasTheseBits) {
  for (const uint64_t seed : {2, 3}) {
    device_.reset();  // a thread has one current device
    device_ = MakeSimulatedBackend({.seed = seed}, DeviceNumerics::kExact);
    ExpectSameBits(Rows(33, 70));
    ExpectSameBits(Heads(37, 20, 2, 0.5));
  }
}

}  // namespace
}  // namespace tessera::cuda
