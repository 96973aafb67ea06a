#include "models/foreign/megatron_args.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"

namespace tessera {
namespace {

absl::Status RequireDenseDecoder(const JsonFields& args) {
  for (const char* const name : {"num_experts", "mtp_num_layers"}) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t count, args.Integer(name, 0));
    if (count > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(args.source(), ": ", name, " is ", count, ", only 0 is supported"));
    }
  }
  for (const char* const name :
       {"qk_layernorm", "apply_layernorm_1p", "multi_latent_attention", "squared_relu",
        "quick_geglu", "apply_residual_connection_post_layernorm", "rotary_interleaved",
        "qk_l2_norm", "use_mup"}) {
    TESSERA_RETURN_IF_ERROR(args.Require(name, false));
  }
  TESSERA_RETURN_IF_ERROR(args.Require("softmax_type", "vanilla"));
  TESSERA_RETURN_IF_ERROR(args.Require("glu_linear_offset", 0));
  return args.RequireAbsent({"softmax_scale", "window_size", "no_rope_freq",
                             "rotary_base_per_layer", "activation_func_clamp_value"});
}

}  // namespace

std::string MegatronPositionEmbedding(const JsonFields& args) {
  const std::string type =
      args.Text("position_embedding_type", "learned_absolute").value_or("of another type");
  const bool is_rotary = args.Bool("use_rotary_position_embeddings", false).value_or(false);
  return is_rotary && type == "learned_absolute" ? "rope" : type;
}

absl::Status ReadMegatronSizes(const JsonFields& args, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(RequireDenseDecoder(args));
  TESSERA_RETURN_IF_ERROR(ReadFields(
      args,
      {{"num_layers", &ModelConfig::set_num_layers},
       {"hidden_size", &ModelConfig::set_hidden_size},
       {"num_attention_heads", &ModelConfig::set_num_attention_heads},
       {"ffn_hidden_size", &ModelConfig::set_ffn_hidden_size},
       {"max_position_embeddings", &ModelConfig::set_max_position_embeddings},
       {"make_vocab_size_divisible_by", &ModelConfig::set_make_vocab_size_divisible_by, 128},
       {"untie_embeddings_and_output_weights",
        &ModelConfig::set_untie_embeddings_and_output_weights}},
      config));
  TESSERA_ASSIGN_OR_RETURN(const int64_t padded, args.Integer("padded_vocab_size"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t vocabulary, args.Integer("vocab_size", padded));
  TESSERA_ASSIGN_OR_RETURN(double epsilon, args.Real("layernorm_epsilon", 1e-5));
  TESSERA_ASSIGN_OR_RETURN(epsilon, args.Real("norm_epsilon", epsilon));
  const int64_t heads = config.num_attention_heads();
  if (heads > 0) TESSERA_RETURN_IF_ERROR(args.Require("kv_channels", config.hidden_size() / heads));
  if (vocabulary > padded) {
    return absl::InvalidArgumentError(absl::StrCat(args.source(), ": vocab_size is ", vocabulary,
                                                   ", above padded_vocab_size, ", padded));
  }
  config.set_vocab_size(vocabulary);
  config.set_norm_epsilon(epsilon);
  return absl::OkStatus();
}

void WriteMegatronSizes(const ModelConfig& config, nlohmann::ordered_json& args) {
  args["num_layers"] = config.num_layers();
  args["hidden_size"] = config.hidden_size();
  args["ffn_hidden_size"] = config.ffn_hidden_size();
  args["num_attention_heads"] = config.num_attention_heads();
  args["num_query_groups"] = config.num_query_groups();
  args["group_query_attention"] = config.num_query_groups() != config.num_attention_heads();
  args["kv_channels"] = config.hidden_size() / config.num_attention_heads();
  args["max_position_embeddings"] = config.max_position_embeddings();
  args["vocab_size"] = config.vocab_size();
  args["padded_vocab_size"] = PaddedVocabSize(config);
  args["make_vocab_size_divisible_by"] = config.make_vocab_size_divisible_by();
  args["norm_epsilon"] = config.norm_epsilon();
  args["untie_embeddings_and_output_weights"] = config.untie_embeddings_and_output_weights();
  args["init_method_std"] = config.init_method_std();
  args["hidden_dropout"] = config.hidden_dropout();
  args["attention_dropout"] = config.attention_dropout();
  args["add_position_embedding"] = true;
  args["add_qkv_bias"] = false;
  args["apply_layernorm_1p"] = false;
  args["squared_relu"] = false;
}

void AddMegatronLayers(
    int64_t layers,
    const std::function<std::vector<ForeignParameter>(const std::string& prefix, int64_t layer)>&
        parameters_of,
    std::vector<ForeignParameter>& parameters) {
  constexpr std::string_view kLayers = "decoder.layers.";
  std::vector<std::vector<ForeignParameter>> by_parameter;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = absl::StrCat(std::string(kLayers), layer, ".");
    std::vector<ForeignParameter> own = parameters_of(prefix, layer);
    by_parameter.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) by_parameter[i].push_back(own[i]);
    std::move(own.begin(), own.end(), std::back_inserter(parameters));
  }
  const size_t numbered = kLayers.size() + 2;  // "0."
  for (const std::vector<ForeignParameter>& stacked : by_parameter) {
    parameters.push_back(StackLayers(
        absl::StrCat(std::string(kLayers), stacked.front().name.substr(numbered)), stacked));
  }
}

}  // namespace tessera
