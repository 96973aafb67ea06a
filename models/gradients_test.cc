// Gradients of whole models against finite differences, in fp64.

#include <ostream>
#include <string>
#include <vector>

#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/gradient_check.h"
#include "compute/parallel/tensor_parallel.h"
#include "gtest/gtest.h"
#include "models/layers/model.h"
#include "models/testing/sharded_run.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using testing::ExpectGradient;
using testing::ForwardBackward;
using testing::MakeTestBatch;
using testing::MakeTestModel;
using testing::RandomizeWeights;
using testing::ShardedGpt2;
using testing::ShardedLlama3;
using testing::SmallGpt2;
using testing::SmallLlama3;
using testing::TestBatch;
using testing::WithDropout;

struct GradientCase {
  std::string name;
  ModelConfig config;
  ActivationUse use = ActivationUse::kTraining;
  bool two_micro_batches = false;
  int shards = 1;
  bool separate_tied_gradients = false;
};
std::ostream& operator<<(std::ostream& out, const GradientCase& c) { return out << c.name; }

ModelConfig WithoutBiases(ModelConfig config) {
  config.set_use_biases(false);
  return config;
}

std::vector<GradientCase> GradientCases() {
  return {
      {"Gpt2", SmallGpt2()},
      {"Gpt2Dropout", WithDropout(SmallGpt2())},
      {"Gpt2DropoutRecompute", WithDropout(SmallGpt2()), ActivationUse::kTrainingRecompute},
      {"Gpt2TwoMicroBatches", SmallGpt2(), ActivationUse::kTraining, true},
      {"Gpt2WithoutBiases", WithoutBiases(WithDropout(SmallGpt2()))},
      {"Gpt2WithoutBiasesTwoShards", WithoutBiases(ShardedGpt2()), ActivationUse::kTraining, true,
       2},
      {"Llama3Tied", SmallLlama3(true)},
      {"Llama3Untied", SmallLlama3(false)},
      {"Llama3UntiedRecompute", SmallLlama3(false), ActivationUse::kTrainingRecompute},
      {"Llama3UntiedTwoMicroBatches", SmallLlama3(false), ActivationUse::kTraining, true},
      {"Llama3TiedDropout", WithDropout(SmallLlama3(true))},
      {"Gpt2TwoShards", WithDropout(ShardedGpt2()), ActivationUse::kTraining, true, 2},
      {"Gpt2FourShards", WithDropout(ShardedGpt2()), ActivationUse::kTrainingRecompute, false, 4},
      {"Gpt2Apart", ShardedGpt2(), ActivationUse::kTraining, true, 4, true},
      {"Llama3TiedTwoShards", WithDropout(ShardedLlama3(true)), ActivationUse::kTraining, true, 2},
      {"Llama3TiedApart", ShardedLlama3(true), ActivationUse::kTraining, true, 2, true},
      {"Llama3UntiedFourShards", WithDropout(ShardedLlama3(false)),
       ActivationUse::kTrainingRecompute, false, 4},
  };
}

class GradientsTest : public ::testing::TestWithParam<GradientCase> {};

TEST_P(GradientsTest, AreDerivativesOfTheLoss) {
  const GradientCase& c = GetParam();
  const auto backend = MakeReferenceBackend();
  ModelOptions options;
  options.compute_dtype = DType::kF64;
  const TensorParallel tensor_parallel(nullptr, c.shards, /*sequence_parallel=*/false);
  options.tensor_parallel = &tensor_parallel;
  options.separate_tied_gradients = c.separate_tied_gradients;
  const auto model = MakeTestModel(c.config, options, *backend);
  RandomizeWeights(*model, 5);

  std::vector<TestBatch> batches;
  batches.push_back(MakeTestBatch(2, 5, c.config.vocab_size(), 1));
  if (c.two_micro_batches) batches.push_back(MakeTestBatch(2, 5, c.config.vocab_size(), 2));
  const double scale = 0.25;
  // The first micro-batch overwrites the old contents.
  backend->Fill({model->parameters().grads(), 1e3});
  for (size_t i = 0; i < batches.size(); ++i) {
    ForwardBackward(*model, batches[i].batch, c.use, scale, /*accumulate=*/i > 0);
  }

  const auto activations = model->NewActivations(2, 5, ActivationUse::kForwardOnly);
  const auto loss = [&] {
    double sum = 0;
    for (const TestBatch& batch : batches) {
      sum += model->Forward(batch.batch, *activations, {}, {}).value();
    }
    return scale * sum;
  };
  for (const Parameter* parameter : model->parameters().parameters()) {
    if (!parameter->second_grad.empty()) {
      backend->Add({parameter->grad, parameter->second_grad, parameter->grad});
    }
    ExpectGradient(loss, parameter->value, parameter->grad, parameter->key,
                   {.tolerance = 1e-7, .absolute = 1e-8, .max_elements = c.shards == 1 ? 12 : 3});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GradientsTest, ::testing::ValuesIn(GradientCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
