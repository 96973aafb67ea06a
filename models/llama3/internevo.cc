#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

constexpr double kMostFeedForward = 1e12;

// The dict does not name the class of the model: a model of another class has other parameters.
bool DescribesInternEvo(const JsonFields& fields) { return fields.Has("hidden_size"); }

// Refuses settings that make another architecture of it.
absl::Status CheckSettings(const JsonFields& fields) {
  TESSERA_RETURN_IF_ERROR(fields.Require("norm_type", "rmsnorm"));
  TESSERA_RETURN_IF_ERROR(fields.Require("use_swiglu", true));
  TESSERA_RETURN_IF_ERROR(fields.Require("apply_post_layer_norm", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("norm_head", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("is_reward", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("use_dynamic_ntk_rope", false));
  TESSERA_RETURN_IF_ERROR(fields.Require("tie_embeddings_and_output_weights", false));
  TESSERA_ASSIGN_OR_RETURN(const int64_t experts, fields.Integer("num_experts", 1));
  if (experts <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(fields.source(), ": num_experts is ", experts, ": experts are not supported"));
}

// Rounds the product down, then up to a multiple.
absl::StatusOr<int64_t> FeedForwardSize(const JsonFields& fields, int64_t hidden) {
  TESSERA_ASSIGN_OR_RETURN(const double ratio, fields.Real("mlp_ratio", 4));
  TESSERA_ASSIGN_OR_RETURN(const int64_t multiple, fields.Integer("multiple_of", 256));
  const double product = std::trunc(static_cast<double>(hidden) * ratio);
  if (!(product > 0 && product < kMostFeedForward) || multiple < 1 || multiple > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.source(), ": hidden_size ", hidden, ", mlp_ratio ", ratio,
                     " and multiple_of ", multiple, " give no size of a feed-forward layer"));
  }
  return RoundUp(static_cast<int64_t>(product), multiple);
}

// The dict has the arguments of the model's constructor; those that are absent have its defaults.
absl::Status ReadInternEvoConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckSettings(fields));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{"num_layers", &ModelConfig::set_num_layers},
                  {"hidden_size", &ModelConfig::set_hidden_size},
                  {"num_attention_heads", &ModelConfig::set_num_attention_heads},
                  {"num_kv_attention_heads", &ModelConfig::set_num_query_groups},
                  {"vocab_size", &ModelConfig::set_vocab_size},
                  {"max_position_embeddings", &ModelConfig::set_max_position_embeddings, 2048},
                  {"layer_norm_epsilon", &ModelConfig::set_norm_epsilon, 1e-5},
                  {"rope_base", &ModelConfig::set_rotary_base, 10000}},
                 config));
  TESSERA_ASSIGN_OR_RETURN(const int64_t ffn, FeedForwardSize(fields, config.hidden_size()));
  config.set_ffn_hidden_size(ffn);
  config.set_use_rope_scaling(false);
  config.set_untie_embeddings_and_output_weights(true);
  return absl::OkStatus();
}

ForeignParameter Heads(const ModelConfig& config, RotaryRows order, std::string name,
                       const std::string& logical_name, int64_t heads) {
  const int64_t c = config.hidden_size(), d = c / config.num_attention_heads();
  ForeignParameter parameter = {
      .name = std::move(name), .shape = {heads * d, c}, .tensor_parallel_dim = 0};
  AddHeads(config, order, logical_name, 0, heads, 0, parameter);
  return parameter;
}

// Tensor parallelism cuts the columns of these, weight parallelism the rows.
void AddOutputMatrix(std::string name, std::string logical_name, Shape shape,
                     std::vector<ForeignParameter>& parameters) {
  for (const int dim : {1, 0}) parameters.push_back(SameTensor(name, logical_name, shape, dim));
}

void AddInternEvoLayer(const ModelConfig& config, RotaryRows order, int64_t layer,
                       std::vector<ForeignParameter>& parameters) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  const std::string prefix = absl::StrCat("layers.", layer, ".");
  const auto add = [&](const char* name, const char* tensor, Shape shape, int dim = -1) {
    parameters.push_back(
        SameTensor(prefix + name, LayerName(layer, tensor), std::move(shape), dim));
  };
  parameters.push_back(
      FusedQkv(config, prefix + "attention.wqkv.weight", layer, order, /*transposed=*/false));
  parameters.push_back(Heads(config, order, prefix + "attention.wq.weight",
                             LayerName(layer, kQuery), config.num_attention_heads()));
  parameters.push_back(Heads(config, order, prefix + "attention.wk.weight", LayerName(layer, kKey),
                             config.num_query_groups()));
  add("attention.wv.weight", kValue, {kv, c}, 0);
  AddOutputMatrix(prefix + "attention.wo.weight", LayerName(layer, kOut), {c, c}, parameters);
  add("attention_norm.weight", kNorm1, {c});
  add("ffn_norm.weight", kNorm2, {c});
  add("feed_forward.w1.weight", kGate, {f, c}, 0);
  // Early releases have the names of the other two the other way round.
  for (const bool early : {false, true}) {
    add(early ? "feed_forward.w2.weight" : "feed_forward.w3.weight", kUp, {f, c}, 0);
    AddOutputMatrix(prefix + (early ? "feed_forward.w3.weight" : "feed_forward.w2.weight"),
                    LayerName(layer, kDown), {c, f}, parameters);
  }
}

template <RotaryRows kOrder>
std::vector<ForeignParameter> InternEvoParameters(const ModelConfig& config) {
  const Shape table = {config.vocab_size(), config.hidden_size()};
  std::vector<ForeignParameter> parameters;
  // Early releases cut the columns of the embedding, others may cut its rows.
  for (const int dim : {1, 0}) {
    parameters.push_back(SameTensor("tok_embeddings.weight", kTokenEmbedding, table, dim));
  }
  parameters.push_back(SameTensor("output.weight", kHead, table, 0));
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    AddInternEvoLayer(config, kOrder, layer, parameters);
  }
  parameters.push_back(SameTensor("norm.weight", kFinalNorm, {config.hidden_size()}));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kInternEvoFormat = {
    .framework = kInternEvo,
    .describes = DescribesInternEvo,
    .read_config = ReadInternEvoConfig,
    .parameters = InternEvoParameters<RotaryRows::kHalves>};

constinit const ForeignFormat kInternEvoPairedFormat = {
    .framework = "internevo.qk_interleaved",
    .describes = DescribesInternEvo,
    .read_config = ReadInternEvoConfig,
    .parameters = InternEvoParameters<RotaryRows::kPairs>};

}  // namespace tessera::llama3
