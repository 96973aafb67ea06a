#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/sharding.h"

namespace tessera::llama3 {
namespace {

// The longest sequences that Meta trained with, before and since Llama 3.1.
constexpr int64_t kPositions = 8192;
constexpr int64_t kScaledPositions = 131072;

bool Describes(const JsonFields& fields) { return fields.Has("n_layers") && fields.Has("dim"); }

absl::Status ReadConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t layers, fields.Integer("n_layers"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t hidden, fields.Integer("dim"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t heads, fields.Integer("n_heads"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t groups, fields.Integer("n_kv_heads", heads));
  TESSERA_ASSIGN_OR_RETURN(const int64_t vocabulary, fields.Integer("vocab_size"));
  TESSERA_ASSIGN_OR_RETURN(const int64_t multiple, fields.Integer("multiple_of", 256));
  TESSERA_ASSIGN_OR_RETURN(const double multiplier, fields.Real("ffn_dim_multiplier", 1));
  TESSERA_ASSIGN_OR_RETURN(const double epsilon, fields.Real("norm_eps", 1e-5));
  TESSERA_ASSIGN_OR_RETURN(const double base, fields.Real("rope_theta", 10000));
  TESSERA_ASSIGN_OR_RETURN(const bool scaled, fields.Bool("use_scaled_rope", false));
  config.set_num_layers(layers);
  config.set_hidden_size(hidden);
  config.set_num_attention_heads(heads);
  config.set_num_query_groups(groups);
  config.set_vocab_size(vocabulary);
  config.set_ffn_multiple_of(multiple);
  config.set_ffn_multiplier(multiplier);
  config.set_norm_epsilon(epsilon);
  config.set_rotary_base(base);
  config.set_use_rope_scaling(scaled);
  if (scaled) {
    if (!fields.Has("rope_scaling_factor")) {
      return absl::InvalidArgumentError(
          "params.json has use_scaled_rope, but does not tell the factor: add "
          "\"rope_scaling_factor\", which is 8 in Llama 3.1 and 32 in Llama 3.2");
    }
    TESSERA_ASSIGN_OR_RETURN(const double factor, fields.Real("rope_scaling_factor"));
    config.set_rope_scaling_factor(factor);
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t positions,
                           fields.Integer("max_seq_len", scaled ? kScaledPositions : kPositions));
  config.set_max_position_embeddings(positions);
  config.set_untie_embeddings_and_output_weights(true);
  return absl::OkStatus();
}

void AddLayer(const ModelConfig& config, int64_t layer, std::vector<ForeignParameter>& parameters) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t d = c / config.num_attention_heads(), kv = config.num_query_groups() * d;
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  const auto same = [&](const char* name, const char* tensor, Shape shape) {
    parameters.push_back(SameTensor(prefix + name, LayerName(layer, tensor), std::move(shape)));
  };
  const auto rotary = [&](const char* name, const char* tensor, int64_t heads) {
    parameters.push_back({.name = prefix + name, .shape = {heads * d, c}});
    AddHeads(config, RotaryRows::kPairs, LayerName(layer, tensor), 0, heads, 0, parameters.back());
  };
  rotary("attention.wq.weight", kQuery, config.num_attention_heads());
  rotary("attention.wk.weight", kKey, config.num_query_groups());
  same("attention.wv.weight", kValue, {kv, c});
  same("attention.wo.weight", kOut, {c, c});
  same("feed_forward.w1.weight", kGate, {f, c});
  same("feed_forward.w2.weight", kDown, {c, f});
  same("feed_forward.w3.weight", kUp, {f, c});
  same("attention_norm.weight", kNorm1, {c});
  same("ffn_norm.weight", kNorm2, {c});
}

// In the order of the modules.
std::vector<ForeignParameter> Parameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), v = config.vocab_size();
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor("tok_embeddings.weight", kTokenEmbedding, {v, c}));
  const bool tied = !config.untie_embeddings_and_output_weights();
  if (tied) parameters.back().other_names.emplace_back("output.weight");
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    AddLayer(config, layer, parameters);
  }
  parameters.push_back(SameTensor("norm.weight", kFinalNorm, {c}));
  if (!tied) parameters.push_back(SameTensor("output.weight", kHead, {v, c}));
  parameters.push_back({.name = "rope.freqs"});  // computed, in old files
  return parameters;
}

}  // namespace

constinit const ForeignFormat kMetaFormat = {.framework = kMeta,
                                             .describes = Describes,
                                             .read_config = ReadConfig,
                                             .parameters = Parameters};

}  // namespace tessera::llama3
