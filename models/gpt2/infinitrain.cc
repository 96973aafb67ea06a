#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt2/foreign.h"
#include "models/gpt2/sharding.h"

namespace tessera::gpt2 {
namespace {

// The fields of trainer_state.json that depend on the model alone. Its n_kv_head does not: it is
// that of a default.
void WriteConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["n_layer"] = config.num_layers();
  json["n_head"] = config.num_attention_heads();
  json["n_embd"] = config.hidden_size();
}

std::vector<ForeignParameter> Parameters(const ModelConfig& config) {
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
  parameters.push_back(same(kFinalNormBias, {c}));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kInfiniTrainFormat = {
    .framework = kInfiniTrain,
    // No file describes a whole model.
    .describes = [](const JsonFields&) { return false; },
    .write_config = WriteConfig,
    .parameters = Parameters};

}  // namespace tessera::gpt2
