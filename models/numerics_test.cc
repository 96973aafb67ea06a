// The CPU backend's models against the fp64 reference; equalities that hold bit for bit.

#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/testing.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "gtest/gtest.h"
#include "models/layers/model.h"
#include "models/testing/test_model.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

using testing::ExpectBitwiseEqual;
using testing::ExpectClose;
using testing::ForwardBackward;
using testing::MakeTestBatch;
using testing::MakeTestModel;
using testing::TestBatch;

constexpr int64_t kBatch = 3, kSequence = 17;

ModelConfig Tiny(const std::string& size, bool dropout) {
  ModelConfig config;
  config.set_size(size);
  config.set_vocab_size(251);
  if (dropout) {
    config.set_hidden_dropout(0.1);
    config.set_attention_dropout(0.1);
  }
  return config;
}

std::unique_ptr<Model> Make(const ModelConfig& config, DType dtype, Backend& backend) {
  ModelOptions options;
  options.compute_dtype = dtype;
  return MakeTestModel(config, options, backend);
}

struct NumericsCase {
  std::string size;
  DType dtype;
};
std::ostream& operator<<(std::ostream& out, const NumericsCase& c) {
  return out << c.size << " in " << DTypeName(c.dtype);
}

class NumericsTest : public ::testing::TestWithParam<NumericsCase> {
 protected:
  ModelConfig config_ = Tiny(GetParam().size, /*dropout=*/true);
  TestBatch batch_ = MakeTestBatch(kBatch, kSequence, 251, 7);
};

double L2(const TensorView& x, Backend& backend) { return std::sqrt(backend.SumOfSquares({x})); }

// The reference uses the CPU model's own (rounded) weights, so that only the arithmetic differs.
TEST_P(NumericsTest, AgreesWithTheReference) {
  const bool bf16 = GetParam().dtype == DType::kBF16;
  const auto cpu = MakeCpuBackend(2);
  const auto reference = MakeReferenceBackend();
  const auto model = Make(config_, GetParam().dtype, *cpu);
  model->parameters().Initialize(3);
  const auto oracle = Make(config_, DType::kF64, *reference);
  reference->Copy({model->parameters().values(), oracle->parameters().values()});

  const double loss =
      ForwardBackward(*model, batch_.batch, ActivationUse::kTraining, 1.0 / 50, false);
  const double expected =
      ForwardBackward(*oracle, batch_.batch, ActivationUse::kTraining, 1.0 / 50, false);
  EXPECT_NEAR(loss / expected, 1, bf16 ? 1e-3 : 1e-6);
  for (size_t i = 0; i < model->parameters().parameters().size(); ++i) {
    const Parameter& actual = *model->parameters().parameters()[i];
    const Parameter& wanted = *oracle->parameters().parameters()[i];
    const std::string& name = actual.pieces[0].name;
    ExpectClose(actual.grad, wanted.grad, {.absolute = 1e-7, .of_maximum = bf16 ? 6e-2 : 1e-4},
                name);
    Tensor difference(DType::kF64, wanted.shape);
    reference->Copy({actual.grad, difference});
    reference->Scale({difference, -1});
    reference->Add({difference, wanted.grad, difference});
    EXPECT_LE(L2(difference, *reference), (bf16 ? 2e-2 : 1e-5) * L2(wanted.grad, *reference) + 1e-7)
        << name;
  }
}

TEST_P(NumericsTest, RecomputationKeptNormsThreadsAndRepetitionChangeNoBit) {
  const auto one = MakeCpuBackend(1);
  const auto two = MakeCpuBackend(2);
  const auto model = Make(config_, GetParam().dtype, *two);
  model->parameters().Initialize(3);
  const auto other = Make(config_, GetParam().dtype, *one);
  other->parameters().Initialize(3);
  ExpectBitwiseEqual(other->parameters().values(), model->parameters().values(), "weights");

  const auto run = [&](Model& m, ActivationUse use) {
    ForwardBackward(m, batch_.batch, use, 0.02, /*accumulate=*/false);
    return ForwardBackward(m, batch_.batch, use, 0.02, /*accumulate=*/true);
  };
  const double loss = run(*model, ActivationUse::kTraining);
  for (const auto use : {ActivationUse::kTrainingWithNorms, ActivationUse::kTrainingRecompute}) {
    EXPECT_EQ(run(*other, use), loss);
    ExpectBitwiseEqual(other->parameters().grads(), model->parameters().grads(), "gradients");
  }
}

// Evaluation returns the same loss as training without dropout, in less memory; recomputation needs
// less memory than saving activations.
TEST_P(NumericsTest, ActivationsOfEveryUse) {
  const auto backend = MakeCpuBackend(2);
  const auto model = Make(config_, GetParam().dtype, *backend);
  model->parameters().Initialize(3);
  batch_.batch.training = false;
  const auto training = model->NewActivations(kBatch, kSequence, ActivationUse::kTraining);
  const auto recompute =
      model->NewActivations(kBatch, kSequence, ActivationUse::kTrainingRecompute);
  const auto forward = model->NewActivations(kBatch, kSequence, ActivationUse::kForwardOnly);
  EXPECT_LT(recompute->bytes(), training->bytes());
  // Two norms in each of two layers.
  const int64_t norms = 4 * kBatch * kSequence * 64 * ElementSize(GetParam().dtype);
  EXPECT_EQ(model->ActivationBytes(kBatch, kSequence, ActivationUse::kTrainingWithNorms),
            training->bytes() + norms);
  EXPECT_LT(forward->bytes(), recompute->bytes());
  const double loss = model->Forward(batch_.batch, *training, {}, {}).value();
  EXPECT_EQ(model->Forward(batch_.batch, *forward, {}, {}).value(), loss);
  EXPECT_EQ(model->Forward(batch_.batch, *recompute, {}, {}).value(), loss);
  // An untrained model has about the entropy of a uniform guess.
  EXPECT_NEAR(loss / (kBatch * kSequence - 1), std::log(251.0), 0.1);
}

TEST_P(NumericsTest, BytesAreExactAndAStepAllocatesNothing) {
  const auto backend = MakeCpuBackend(2);
  const auto model = Make(config_, GetParam().dtype, *backend);
  model->parameters().Initialize(3);
  const int64_t before = TensorMemory(MemoryCategory::kActivations).live_bytes;
  const auto activations = model->NewActivations(kBatch, kSequence, ActivationUse::kTraining);
  EXPECT_EQ(TensorMemory(MemoryCategory::kActivations).live_bytes - before, activations->bytes());
  const auto step = [&](bool accumulate) {
    ASSERT_OK(model->Forward(batch_.batch, *activations, {}, {}));
    ASSERT_OK(model->Backward(batch_.batch, *activations, 0.02, accumulate, {}, {}, nullptr));
  };
  step(/*accumulate=*/false);  // the backend's workspace grows to what it needs
  step(/*accumulate=*/true);
  const int64_t live = TensorMemory().live_bytes;
  ResetPeakMemory();
  step(/*accumulate=*/false);
  step(/*accumulate=*/true);
  EXPECT_EQ(TensorMemory().live_bytes, live);
  EXPECT_EQ(TensorMemory().peak_bytes, live);
}

std::vector<NumericsCase> NumericsCases() {
  return {{"gpt2-tiny", DType::kF32},
          {"gpt2-tiny", DType::kBF16},
          {"llama3-tiny", DType::kF32},
          {"llama3-tiny", DType::kBF16}};
}

INSTANTIATE_TEST_SUITE_P(Models, NumericsTest, ::testing::ValuesIn(NumericsCases()),
                         [](const auto& info) {
                           return info.param.size.substr(0, info.param.size.find('-')) +
                                  (info.param.dtype == DType::kBF16 ? "_BF16" : "_F32");
                         });

}  // namespace
}  // namespace tessera
