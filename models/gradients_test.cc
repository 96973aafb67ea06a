// Gradients of whole models against finite differences, in fp64.

#include <functional>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "models/model.h"
#include "models/testing/test_model.h"
#include "trainer/kernels/reference/reference_backend.h"
#include "trainer/kernels/testing/gradient_check.h"

namespace tessera {
namespace {

using testing::ExpectGradient;
using testing::ForwardBackward;
using testing::MakeTestBatch;
using testing::MakeTestModel;
using testing::RandomizeWeights;
using testing::SmallGpt2;
using testing::SmallLlama3;
using testing::TestBatch;

struct Case {
  std::string name;
  ModelConfig config;
  ActivationUse use = ActivationUse::kTraining;
  bool two_micro_batches = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

ModelConfig WithDropout(ModelConfig config) {
  config.set_hidden_dropout(0.3);
  config.set_attention_dropout(0.2);
  return config;
}

std::vector<Case> Cases() {
  return {
      {"Gpt2", SmallGpt2()},
      {"Gpt2Dropout", WithDropout(SmallGpt2())},
      {"Gpt2DropoutRecompute", WithDropout(SmallGpt2()), ActivationUse::kTrainingRecompute},
      {"Gpt2TwoMicroBatches", SmallGpt2(), ActivationUse::kTraining, true},
      {"Llama3Tied", SmallLlama3(true)},
      {"Llama3Untied", SmallLlama3(false)},
      {"Llama3UntiedRecompute", SmallLlama3(false), ActivationUse::kTrainingRecompute},
      {"Llama3UntiedTwoMicroBatches", SmallLlama3(false), ActivationUse::kTraining, true},
      {"Llama3TiedDropout", WithDropout(SmallLlama3(true))},
  };
}

class GradientsTest : public ::testing::TestWithParam<Case> {};

TEST_P(GradientsTest, AreDerivativesOfTheLoss) {
  const Case& c = GetParam();
  const auto backend = MakeReferenceBackend();
  ModelOptions options;
  options.compute_dtype = DType::kF64;
  const auto model = MakeTestModel(c.config, options, *backend);
  RandomizeWeights(*model, 5);

  std::vector<TestBatch> batches;
  batches.push_back(MakeTestBatch(2, 5, c.config.vocab_size(), 1));
  if (c.two_micro_batches) batches.push_back(MakeTestBatch(2, 5, c.config.vocab_size(), 2));
  const double scale = 0.25;
  for (const Parameter* parameter : model->parameters().parameters()) {
    backend->Fill(parameter->grad, 1e3);  // the first micro-batch overwrites whatever is there
  }
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
    ExpectGradient(loss, parameter->value, parameter->grad, parameter->pieces[0].name,
                   {.tolerance = 1e-7, .absolute = 1e-8, .max_elements = 12});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GradientsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
