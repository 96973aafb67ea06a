#include "models/testing/test_model.h"

#include <utility>
#include <vector>

#include "compute/random/philox.h"
#include "glog/logging.h"
#include "models/registry.h"
#include "tensor/bfloat16.h"

namespace tessera::testing {

ModelConfig SmallGpt2() {
  ModelConfig config;
  config.set_architecture(ModelConfig::GPT2);
  config.set_num_layers(2);
  config.set_hidden_size(12);
  config.set_num_attention_heads(3);
  config.set_max_position_embeddings(9);
  config.set_vocab_size(21);
  config.set_make_vocab_size_divisible_by(8);
  return config;
}

ModelConfig SmallLlama3(bool tied) {
  ModelConfig config;
  config.set_architecture(ModelConfig::LLAMA3);
  config.set_num_layers(2);
  config.set_hidden_size(16);
  config.set_num_attention_heads(4);
  config.set_num_query_groups(2);
  config.set_ffn_hidden_size(20);
  config.set_max_position_embeddings(32);
  config.set_vocab_size(21);
  config.set_make_vocab_size_divisible_by(8);
  config.set_rotary_base(100);
  config.set_rope_scaling_factor(4);
  config.set_rope_scaling_original_max_position_embeddings(16);
  config.set_untie_embeddings_and_output_weights(!tied);
  return config;
}

std::unique_ptr<Model> MakeTestModel(const ModelConfig& config, const ModelOptions& options,
                                     Backend& backend) {
  auto model = MakeModel(config, options, backend);
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

namespace {

void AddOne(const TensorView& x) {
  for (int64_t i = 0; i < x.elements(); ++i) {
    switch (x.dtype()) {
      case DType::kF32:
        x.as<float>()[i] += 1;
        break;
      case DType::kF64:
        x.as<double>()[i] += 1;
        break;
      case DType::kBF16:
        x.as<BFloat16>()[i] = BFloat16(static_cast<float>(x.as<BFloat16>()[i]) + 1);
        break;
      default:
        LOG(FATAL) << "weights of type " << DTypeName(x.dtype());
    }
  }
}

}  // namespace

void RandomizeWeights(Model& model, uint64_t seed) {
  const std::vector<Parameter*>& parameters = model.parameters().parameters();
  std::vector<const Parameter*> norms;
  for (Parameter* parameter : parameters) {
    if (parameter->init.kind == Initialization::kOnes) norms.push_back(parameter);
    parameter->init = {Initialization::kNormal, 0.2};
  }
  model.parameters().Initialize(seed);
  for (const Parameter* norm : norms) AddOne(norm->value);
}

TestBatch MakeTestBatch(int64_t batch, int64_t sequence, int64_t vocab_size, uint64_t seed) {
  TestBatch result;
  result.ids = Tensor(DType::kI32, {batch, sequence});
  result.targets = Tensor(DType::kI32, {batch, sequence});
  const RandomStream stream{seed, RandomUse::kSampling, 0};
  for (int64_t i = 0; i < batch * sequence; ++i) {
    result.ids.view().as<int32_t>()[i] =
        static_cast<int32_t>(RandomWord(stream, 2 * i) % vocab_size);
    result.targets.view().as<int32_t>()[i] =
        static_cast<int32_t>(RandomWord(stream, 2 * i + 1) % vocab_size);
  }
  result.targets.view().as<int32_t>()[1] = -1;
  result.batch.ids = result.ids;
  result.batch.targets = result.targets;
  result.batch.step = 3;
  result.batch.first_sample = 8;
  result.batch.training = true;
  return result;
}

double ForwardBackward(Model& model, const MicroBatch& batch, ActivationUse use, double loss_scale,
                       bool accumulate) {
  const auto activations = model.NewActivations(batch.ids.dim(0), batch.ids.dim(1), use);
  const absl::StatusOr<double> loss = model.Forward(batch, *activations, {}, {});
  CHECK(loss.ok()) << loss.status();
  const absl::Status backward =
      model.Backward(batch, *activations, loss_scale, accumulate, {}, {}, nullptr);
  CHECK(backward.ok()) << backward;
  return *loss;
}

}  // namespace tessera::testing
