#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

bool DescribesPaddle(const JsonFields& fields) {
  return fields.Text("model_type", "").value_or("") == "llama";
}

// PaddleNLP leaves out fields that have its defaults.
absl::Status ReadPaddleConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(fields.Require("alibi", false));
  // LlamaLMHead of 2.8 has a matrix of its own, whatever this says.
  TESSERA_RETURN_IF_ERROR(fields.Require("tie_word_embeddings", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("use_long_sequence_strategies", false));
  TESSERA_RETURN_IF_ERROR(fields.RequireAbsent({"rope_scaling", "rope_scaling_type"}));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{"vocab_size", &ModelConfig::set_vocab_size, 32000},
                  {"num_hidden_layers", &ModelConfig::set_num_layers, 32},
                  {"hidden_size", &ModelConfig::set_hidden_size, 4096},
                  {"num_attention_heads", &ModelConfig::set_num_attention_heads, 32},
                  {"intermediate_size", &ModelConfig::set_ffn_hidden_size, 11008},
                  {"max_position_embeddings", &ModelConfig::set_max_position_embeddings, 2048},
                  {"rms_norm_eps", &ModelConfig::set_norm_epsilon, 1e-6},
                  {"rope_theta", &ModelConfig::set_rotary_base, 10000}},
                 config));
  TESSERA_ASSIGN_OR_RETURN(const int64_t groups,
                           fields.Integer("num_key_value_heads", config.num_attention_heads()));
  config.set_num_query_groups(groups);
  config.set_use_rope_scaling(false);
  config.set_untie_embeddings_and_output_weights(true);
  return absl::OkStatus();
}

void WritePaddleConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  json["vocab_size"] = config.vocab_size();
  json["num_hidden_layers"] = config.num_layers();
  json["hidden_size"] = config.hidden_size();
  json["num_attention_heads"] = config.num_attention_heads();
  json["num_key_value_heads"] = config.num_query_groups();
  json["intermediate_size"] = config.ffn_hidden_size();
  json["max_position_embeddings"] = config.max_position_embeddings();
  json["rms_norm_eps"] = config.norm_epsilon();
  json["rope_theta"] = config.rotary_base();
  json["tie_word_embeddings"] = false;
}

absl::Status CheckPaddle(const ModelConfig& config) {
  if (config.use_rope_scaling()) {
    return absl::InvalidArgumentError("its rotary frequencies are scaled (use_rope_scaling)");
  }
  if (config.untie_embeddings_and_output_weights()) return absl::OkStatus();
  return absl::InvalidArgumentError("its head is tied to the embeddings");
}

// Names of a layer's parameters are the same here and there.
std::vector<ForeignParameter> PaddleLayerParameters(const ModelConfig& config, int64_t layer) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  std::vector<ForeignParameter> parameters;
  const auto add_norm = [&](const char* name) {
    parameters.push_back(SameTensor(name, LayerName(layer, name), {c}));
  };
  const auto add = [&](const char* name, int64_t rows, int64_t columns, int cut) {
    parameters.push_back(TransposedMatrix(name, LayerName(layer, name), rows, columns, cut));
  };
  add_norm(kNorm1);
  add(kQuery, c, c, 1);
  add(kKey, kv, c, 1);
  add(kValue, kv, c, 1);
  add(kOut, c, c, 0);
  add_norm(kNorm2);
  add(kGate, f, c, 1);
  add(kUp, f, c, 1);
  add(kDown, c, f, 0);
  parameters.push_back(FusedQkv(config, "self_attn.qkv_proj.weight", layer, RotaryRows::kHalves,
                                /*transposed=*/true));
  parameters.push_back(
      FusedGateUp(config, "mlp.gate_up_fused_proj.weight", layer, /*transposed=*/true));
  return parameters;
}

std::vector<ForeignParameter> PaddleParameters(const ModelConfig& config) {
  const int64_t v = config.vocab_size(), c = config.hidden_size();
  std::vector<ForeignParameter> parameters;
  // `name` follows `prefix` in files of the whole model, and the layer's number in a pipeline's.
  const auto add = [&](ForeignParameter parameter, const std::string& prefix, int64_t number) {
    parameter.other_names.push_back(absl::StrCat(number, ".", parameter.name));
    parameter.name = absl::StrCat(prefix, ".", parameter.name);
    parameters.push_back(std::move(parameter));
  };
  const int64_t layers = config.num_layers();
  add(SameTensor("embed_tokens.weight", kTokenEmbedding, {v, c}, 0), "llama", 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (ForeignParameter& parameter : PaddleLayerParameters(config, layer)) {
      add(std::move(parameter), absl::StrCat("llama.layers.", layer), layer + 1);
    }
  }
  add(SameTensor("norm.weight", kFinalNorm, {c}), "llama", layers + 1);
  add(TransposedMatrix("weight", kHead, v, c, 1), "lm_head", layers + 2);
  return parameters;
}

}  // namespace

constinit const ForeignFormat kPaddleFormat = {.framework = kPaddle,
                                               .describes = DescribesPaddle,
                                               .read_config = ReadPaddleConfig,
                                               .write_config = WritePaddleConfig,
                                               .check = CheckPaddle,
                                               .parameters = PaddleParameters};

}  // namespace tessera::llama3
