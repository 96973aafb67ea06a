#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/foreign/megatron_args.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

bool DescribesMegatron(const JsonFields& args) {
  return MegatronPositionEmbedding(args) == "rope" &&
         args.Text("normalization", "LayerNorm").value_or("") == "RMSNorm";
}

absl::Status ReadMegatronConfig(const JsonFields& args, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(args.Require("add_bias_linear", false));
  TESSERA_RETURN_IF_ERROR(args.Require("add_qkv_bias", false));
  TESSERA_RETURN_IF_ERROR(args.Require("swiglu", true));
  TESSERA_RETURN_IF_ERROR(args.Require("rotary_percent", 1.0));
  TESSERA_RETURN_IF_ERROR(args.Require("rotary_seq_len_interpolation_factor", 1));
  TESSERA_RETURN_IF_ERROR(ReadMegatronSizes(args, config));
  // num_query_groups means something only where the attention is said to be grouped.
  TESSERA_ASSIGN_OR_RETURN(const bool grouped, args.Bool("group_query_attention", false));
  if (grouped) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t groups, args.Integer("num_query_groups"));
    config.set_num_query_groups(groups);
  }
  TESSERA_RETURN_IF_ERROR(ReadFields(args,
                                     {{"rotary_base", &ModelConfig::set_rotary_base, 10000},
                                      {"use_rope_scaling", &ModelConfig::set_use_rope_scaling}},
                                     config));
  TESSERA_ASSIGN_OR_RETURN(const double factor, args.Real("rope_scaling_factor", 8));
  if (config.use_rope_scaling()) config.set_rope_scaling_factor(factor);
  return absl::OkStatus();
}

void WriteMegatronConfig(const ModelConfig& config, nlohmann::ordered_json& args) {
  WriteMegatronSizes(config, args);
  args["position_embedding_type"] = "rope";
  args["normalization"] = "RMSNorm";
  args["add_bias_linear"] = false;
  args["swiglu"] = true;
  args["rotary_base"] = config.rotary_base();
  args["rotary_percent"] = 1.0;
  args["rotary_interleaved"] = false;
  args["use_rope_scaling"] = config.use_rope_scaling();
  args["rope_scaling_factor"] = config.rope_scaling_factor();
}

// Megatron-LM's RotaryEmbedding takes the factor alone.
absl::Status CheckMegatron(const ModelConfig& config) {
  return CheckRopeScaling(config, /*states_factor=*/true);
}

ForeignParameter Norm(const std::string& prefix, const char* fused_name, const char* name,
                      std::string logical_name, int64_t size) {
  ForeignParameter norm = SameTensor(prefix + fused_name, std::move(logical_name), {size});
  norm.other_names.push_back(prefix + name);
  return norm;
}

// Returns a layer's parameters in the order of the modules.
std::vector<ForeignParameter> MegatronLayerParameters(const ModelConfig& config,
                                                      const std::string& prefix, int64_t layer) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const auto logical = [&](const char* tensor) { return LayerName(layer, tensor); };
  return {Norm(prefix, "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight",
               logical(kNorm1), c),
          SameTensor(prefix + "self_attention.linear_proj.weight", logical(kOut), {c, c}, 1),
          FusedQkv(config, prefix + "self_attention.linear_qkv.weight", layer, RotaryRows::kHalves,
                   /*transposed=*/false),
          Norm(prefix, "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight",
               logical(kNorm2), c),
          FusedGateUp(config, prefix + "mlp.linear_fc1.weight", layer, /*transposed=*/false),
          SameTensor(prefix + "mlp.linear_fc2.weight", logical(kDown), {c, f}, 1)};
}

std::vector<ForeignParameter> MegatronParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  std::vector<ForeignParameter> parameters;
  const auto add_table = [&](const char* name, const char* logical_name) {
    parameters.push_back(SameTensor(name, logical_name, {config.vocab_size(), c}, 0));
    parameters.back().padded = true;
  };
  const bool is_tied = !config.untie_embeddings_and_output_weights();
  add_table("embedding.word_embeddings.weight", kTokenEmbedding);
  if (is_tied) parameters.back().other_names.push_back("output_layer.weight");
  AddMegatronLayers(
      config.num_layers(),
      [&](const std::string& prefix, int64_t layer) {
        return MegatronLayerParameters(config, prefix, layer);
      },
      parameters);
  parameters.push_back(SameTensor("decoder.final_layernorm.weight", kFinalNorm, {c}));
  if (!is_tied) add_table("output_layer.weight", kHead);
  return parameters;
}

}  // namespace

constinit const ForeignFormat kMegatronFormat = {.framework = kMegatron,
                                                 .describes = DescribesMegatron,
                                                 .read_config = ReadMegatronConfig,
                                                 .write_config = WriteMegatronConfig,
                                                 .check = CheckMegatron,
                                                 .parameters = MegatronParameters};

}  // namespace tessera::llama3
