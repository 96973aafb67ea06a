#include "models/gpt2/foreign.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "models/config/config_checks.h"
#include "models/gpt2/names.h"

namespace tessera::gpt2 {

std::vector<LayerTensor> LayerTensors(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  std::vector<LayerTensor> tensors = {
      {kNorm1Weight, {c}}, {kNorm1Bias, {c}},           {kQkvWeight, {c, 3 * c}},
      {kQkvBias, {3 * c}}, {kProjectionWeight, {c, c}}, {kProjectionBias, {c}},
      {kNorm2Weight, {c}}, {kNorm2Bias, {c}},           {kUpWeight, {c, f}},
      {kUpBias, {f}},      {kDownWeight, {f, c}},       {kDownBias, {c}}};
  if (HasBiases(config)) return tensors;
  std::erase_if(tensors, [](const LayerTensor& tensor) {
    return std::string_view(tensor.name).ends_with(".bias");
  });
  return tensors;
}

absl::Status CheckHasBiases(const ModelConfig& config) {
  if (HasBiases(config)) return absl::OkStatus();
  return absl::InvalidArgumentError("use_biases is false: this format has GPT-2 with biases only");
}

std::vector<ForeignParameter> OutByInParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  const auto same = [](const char* name, Shape shape) {
    return SameTensor(name, name, std::move(shape));
  };
  std::vector<ForeignParameter> parameters;
  parameters.push_back(same(kTokenEmbedding, {config.vocab_size(), c}));
  parameters.back().other_names.emplace_back(kHead);
  parameters.push_back(same(kPositionEmbedding, {config.max_position_embeddings(), c}));
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    for (const auto& [tensor, shape] : LayerTensors(config)) {
      const std::string name = LayerName(layer, tensor);
      parameters.push_back(OutByIn(name, name, shape));
    }
  }
  parameters.push_back(same(kFinalNormWeight, {c}));
  if (HasBiases(config)) parameters.push_back(same(kFinalNormBias, {c}));
  return parameters;
}

ForeignParameter OutByIn(std::string name, std::string logical_name, const Shape& logical_shape) {
  if (logical_shape.size() == 1) {
    return SameTensor(std::move(name), std::move(logical_name), logical_shape);
  }
  return TransposedMatrix(std::move(name), std::move(logical_name), logical_shape[0],
                          logical_shape[1]);
}

}  // namespace tessera::gpt2
