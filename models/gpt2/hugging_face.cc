#include <string_view>

#include "base/status_macros.h"
#include "models/config/config_checks.h"
#include "models/gpt2/foreign.h"

namespace tessera::gpt2 {
namespace {

// Masks of the attention, in files of older versions.
constexpr std::string_view kComputed[] = {"*.attn.bias", "*.attn.masked_bias"};

// Not one of transformers' fields: it gives a model whose files have no biases those of zeros.
constexpr char kBias[] = "bias";

absl::Status ReadHuggingFaceConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(fields.Require("activation_function", "gelu_new"));
  TESSERA_RETURN_IF_ERROR(fields.Require("scale_attn_weights", true));
  TESSERA_RETURN_IF_ERROR(fields.Require("scale_attn_by_inverse_layer_idx", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("add_cross_attention", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("tie_word_embeddings", true));
  TESSERA_RETURN_IF_ERROR(ReadFields(fields,
                                     {{"n_layer", &ModelConfig::set_num_layers},
                                      {"n_embd", &ModelConfig::set_hidden_size},
                                      {"n_head", &ModelConfig::set_num_attention_heads},
                                      {"n_positions", &ModelConfig::set_max_position_embeddings},
                                      {"layer_norm_epsilon", &ModelConfig::set_norm_epsilon, 1e-5}},
                                     config));
  TESSERA_ASSIGN_OR_RETURN(const bool bias, fields.Bool(kBias, true));
  if (!bias) config.set_use_biases(false);
  if (!fields.Has("n_inner")) return absl::OkStatus();
  return ReadFields(fields, {{"n_inner", &ModelConfig::set_ffn_hidden_size}}, config);
}

void WriteHuggingFaceConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["activation_function"] = "gelu_new";
  json["n_layer"] = config.num_layers();
  json["n_embd"] = config.hidden_size();
  json["n_head"] = config.num_attention_heads();
  json["n_inner"] = config.ffn_hidden_size();
  json["n_positions"] = config.max_position_embeddings();
  json["layer_norm_epsilon"] = config.norm_epsilon();
  if (!HasBiases(config)) json[kBias] = false;
  json["resid_pdrop"] = config.hidden_dropout();
  json["embd_pdrop"] = config.hidden_dropout();
  json["attn_pdrop"] = config.attention_dropout();
}

}  // namespace

constinit const HuggingFaceFormat kHuggingFaceFormat = {.model_type = "gpt2",
                                                        .class_name = "GPT2LMHeadModel",
                                                        .prefix = "transformer.",
                                                        .computed = kComputed,
                                                        .read_config = ReadHuggingFaceConfig,
                                                        .write_config = WriteHuggingFaceConfig};

}  // namespace tessera::gpt2
