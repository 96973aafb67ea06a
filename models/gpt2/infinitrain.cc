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

void AddLayer(const ModelConfig& config, int64_t layer, std::vector<ForeignParameter>& parameters) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const auto vector = [&](const char* tensor, int64_t size) {
    const std::string name = LayerName(layer, tensor);
    parameters.push_back(SameTensor(name, name, {size}));
  };
  // `rows` and `columns` describe the logical matrix.
  const auto matrix = [&](const char* tensor, int64_t rows, int64_t columns) {
    const std::string name = LayerName(layer, tensor);
    parameters.push_back(TransposedMatrix(name, name, rows, columns));
  };
  vector(kNorm1Weight, c);
  vector(kNorm1Bias, c);
  matrix(kQkvWeight, c, 3 * c);
  vector(kQkvBias, 3 * c);
  matrix(kProjectionWeight, c, c);
  vector(kProjectionBias, c);
  vector(kNorm2Weight, c);
  vector(kNorm2Bias, c);
  matrix(kUpWeight, c, f);
  vector(kUpBias, f);
  matrix(kDownWeight, f, c);
  vector(kDownBias, c);
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
    AddLayer(config, layer, parameters);
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
