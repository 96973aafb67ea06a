#include "models/gpt2/foreign.h"

namespace tessera::gpt2 {
namespace {

// Writes the fields of trainer_state.json that depend on the model alone. n_kv_head does not: it is
// a default's.
void WriteInfiniTrainConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["n_layer"] = config.num_layers();
  json["n_head"] = config.num_attention_heads();
  json["n_embd"] = config.hidden_size();
}

}  // namespace

constinit const ForeignFormat kInfiniTrainFormat = {
    .framework = kInfiniTrain,
    // No file describes a whole model.
    .describes = [](const JsonFields&) { return false; },
    .write_config = WriteInfiniTrainConfig,
    .check = CheckHasBiases,
    .parameters = OutByInParameters};

}  // namespace tessera::gpt2
