#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "models/llama3/foreign.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

constexpr std::string_view kComputed[] = {"*.rotary_emb.inv_freq"};
constexpr std::string_view kLayerOrder[] = {kQuery, kKey,  kValue, kOut,  kGate,
                                            kUp,    kDown, kNorm1, kNorm2};
constexpr double kDefaultBase = 10000;  // transformers', where config.json has none
// A field of our own: what RopeScaling() has divided.
constexpr std::string_view kHuggingFaceOriginalPositions =
    "rope_scaling_original_max_position_embeddings";

// transformers 5 has one object `rope_parameters`; versions before have `rope_theta` at the top and
// `rope_scaling`, whose type has two names.
absl::Status ReadRope(const JsonFields& fields, ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(
      const JsonFields rope,
      fields.Object(fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling"));
  TESSERA_ASSIGN_OR_RETURN(double base, fields.Real("rope_theta", kDefaultBase));
  TESSERA_ASSIGN_OR_RETURN(base, rope.Real("rope_theta", base));
  config.set_rotary_base(base);
  TESSERA_ASSIGN_OR_RETURN(std::string type, rope.Text("type", "default"));
  TESSERA_ASSIGN_OR_RETURN(type, rope.Text("rope_type", type));
  config.set_use_rope_scaling(type == "llama3");
  if (type == "default") return absl::OkStatus();
  if (type != "llama3") {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: rope_type is \"", type, "\", only \"default\" and \"llama3\" are supported"));
  }
  TESSERA_ASSIGN_OR_RETURN(const double factor, rope.Real("factor"));
  TESSERA_ASSIGN_OR_RETURN(const double low, rope.Real("low_freq_factor"));
  TESSERA_ASSIGN_OR_RETURN(const double high, rope.Real("high_freq_factor"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t original,
                           rope.Integer("original_max_position_embeddings"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t undivided,
                           fields.Integer(kHuggingFaceOriginalPositions, original));
  const double scale =
      original > 0 ? static_cast<double>(undivided) / static_cast<double>(original) : 1;
  config.set_rope_scaling_factor(factor);
  config.set_rope_scaling_low_freq_factor(low * scale);
  config.set_rope_scaling_high_freq_factor(high * scale);
  config.set_rope_scaling_original_max_position_embeddings(undivided);
  return absl::OkStatus();
}

absl::Status CheckHeadDim(const JsonFields& fields, int64_t hidden, int64_t heads) {
  if (!fields.Has("head_dim")) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const int64_t head_dim, fields.Integer("head_dim"));
  const std::optional<int64_t> wanted = CheckedMultiply(heads, head_dim);
  if (wanted == hidden) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "config.json: hidden_size must be ", wanted.has_value() ? absl::StrCat(*wanted) : "less",
      ", num_attention_heads (", heads, ") times head_dim (", head_dim, "), but is ", hidden));
}

absl::Status ReadHuggingFaceConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(fields.Require("hidden_act", "silu"));
  TESSERA_RETURN_IF_ERROR(fields.Require("attention_bias", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("mlp_bias", false));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{"num_hidden_layers", &ModelConfig::set_num_layers},
                  {"hidden_size", &ModelConfig::set_hidden_size},
                  {"num_attention_heads", &ModelConfig::set_num_attention_heads},
                  {"intermediate_size", &ModelConfig::set_ffn_hidden_size},
                  {"max_position_embeddings", &ModelConfig::set_max_position_embeddings},
                  {"rms_norm_eps", &ModelConfig::set_norm_epsilon, 1e-6}},
                 config));
  const int64_t heads = config.num_attention_heads();
  TESSERA_ASSIGN_OR_RETURN(const int64_t groups, fields.Integer("num_key_value_heads", heads));
  TESSERA_ASSIGN_OR_RETURN(const bool tied, fields.Bool("tie_word_embeddings", false));
  TESSERA_RETURN_IF_ERROR(CheckHeadDim(fields, config.hidden_size(), heads));
  config.set_num_query_groups(groups);
  config.set_untie_embeddings_and_output_weights(!tied);
  return ReadRope(fields, config);
}

// transformers warns where the context before the stretch is not less than max_position_embeddings.
// Divided by a power of two like both limits of frequencies, it gives the same frequencies, to the
// last bit.
nlohmann::ordered_json RopeScaling(const ModelConfig& config) {
  int64_t original = config.rope_scaling_original_max_position_embeddings();
  double scale = 1;
  while (original >= config.max_position_embeddings() && original % 2 == 0 && original > 0) {
    original /= 2;
    scale *= 2;
  }
  return {{"rope_type", "llama3"},
          {"factor", config.rope_scaling_factor()},
          {"low_freq_factor", config.rope_scaling_low_freq_factor() / scale},
          {"high_freq_factor", config.rope_scaling_high_freq_factor() / scale},
          {"original_max_position_embeddings", original}};
}

// The rotary settings as versions before 5 have them, which later ones read, too.
void WriteHuggingFaceConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["hidden_act"] = "silu";
  json["num_hidden_layers"] = config.num_layers();
  json["hidden_size"] = config.hidden_size();
  json["num_attention_heads"] = config.num_attention_heads();
  json["num_key_value_heads"] = config.num_query_groups();
  json["head_dim"] = config.hidden_size() / config.num_attention_heads();
  json["intermediate_size"] = config.ffn_hidden_size();
  json["max_position_embeddings"] = config.max_position_embeddings();
  json["rms_norm_eps"] = config.norm_epsilon();
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["attention_dropout"] = config.attention_dropout();
  json["rope_theta"] = config.rotary_base();
  json["rope_scaling"] = nullptr;
  if (!config.use_rope_scaling()) return;
  json["rope_scaling"] = RopeScaling(config);
  const int64_t original = config.rope_scaling_original_max_position_embeddings();
  if (json["rope_scaling"]["original_max_position_embeddings"] != original) {
    json[std::string(kHuggingFaceOriginalPositions)] = original;
  }
}

}  // namespace

constinit const HuggingFaceFormat kHuggingFaceFormat = {.model_type = "llama",
                                                        .class_name = "LlamaForCausalLM",
                                                        .prefix = "model.",
                                                        .computed = kComputed,
                                                        .layer_order = kLayerOrder,
                                                        .read_config = ReadHuggingFaceConfig,
                                                        .write_config = WriteHuggingFaceConfig};

}  // namespace tessera::llama3
