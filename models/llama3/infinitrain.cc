#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

// Writes the fields of trainer_state.json that depend on the model alone.
void WriteInfiniTrainConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["n_layer"] = config.num_layers();
  json["n_head"] = config.num_attention_heads();
  json["n_kv_head"] = config.num_query_groups();
  json["n_embd"] = config.hidden_size();
}

// Describes the rows of queries, followed by those of keys and those of values.
ForeignParameter Qkv(const ModelConfig& config, std::string name, int64_t layer) {
  const int64_t c = config.hidden_size(), d = c / config.num_attention_heads();
  const int64_t groups = config.num_query_groups(), kv = groups * d;
  ForeignParameter qkv = {.name = std::move(name), .shape = {c + 2 * kv, c}};
  AddHeads(config, RotaryRows::kPairs, LayerName(layer, kQuery), 0, config.num_attention_heads(), 0,
           qkv);
  AddHeads(config, RotaryRows::kPairs, LayerName(layer, kKey), 0, groups, c, qkv);
  qkv.blocks.push_back({.name = LayerName(layer, kValue),
                        .offset = {0, 0},
                        .shape = {kv, c},
                        .foreign_offset = {c + kv, 0}});
  return qkv;
}

void AddInfiniTrainLayer(const ModelConfig& config, int64_t layer,
                         std::vector<ForeignParameter>& parameters) {
  const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
  const auto add = [&](const char* name, const char* tensor) {
    parameters.push_back(PairedTensor(config, layer, tensor, prefix + name));
  };
  add("ln_1.weight", kNorm1);
  parameters.push_back(Qkv(config, prefix + "attn.c_attn.weight", layer));
  add("attn.c_proj.weight", kOut);
  add("ln_2.weight", kNorm2);
  add("mlp.c_fc.weight", kUp);
  add("mlp.c_fc2.weight", kGate);
  add("mlp.c_proj.weight", kDown);
}

std::vector<ForeignParameter> InfiniTrainParameters(const ModelConfig& config) {
  const Shape table = {config.vocab_size(), config.hidden_size()};
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor("transformer.wte.weight", kTokenEmbedding, table));
  const bool tied = !config.untie_embeddings_and_output_weights();
  if (tied) parameters.back().other_names.emplace_back("lm_head.weight");
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    AddInfiniTrainLayer(config, layer, parameters);
  }
  parameters.push_back(SameTensor("transformer.ln_f.weight", kFinalNorm, {config.hidden_size()}));
  if (!tied) parameters.push_back(SameTensor("lm_head.weight", kHead, table));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kInfiniTrainFormat = {
    .framework = kInfiniTrain,
    // No file describes a whole model.
    .describes = [](const JsonFields&) { return false; },
    .write_config = WriteInfiniTrainConfig,
    .parameters = InfiniTrainParameters};

}  // namespace tessera::llama3
