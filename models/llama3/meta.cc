#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

// The longest sequences that Meta trained with, before and since Llama 3.1.
constexpr int64_t kMetaPositions = 8192;
constexpr int64_t kScaledPositions = 131072;

// No file of torchtitan describes the model.
bool DescribesNothing(const JsonFields&) { return false; }

bool DescribesMeta(const JsonFields& fields) { return fields.Has("n_layers") && fields.Has("dim"); }

absl::Status ReadMetaConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(ReadFields(fields,
                                     {{"n_layers", &ModelConfig::set_num_layers},
                                      {"dim", &ModelConfig::set_hidden_size},
                                      {"n_heads", &ModelConfig::set_num_attention_heads},
                                      {"vocab_size", &ModelConfig::set_vocab_size},
                                      {"multiple_of", &ModelConfig::set_ffn_multiple_of, 256},
                                      {"ffn_dim_multiplier", &ModelConfig::set_ffn_multiplier, 1},
                                      {"norm_eps", &ModelConfig::set_norm_epsilon, 1e-5},
                                      {"rope_theta", &ModelConfig::set_rotary_base, 10000}},
                                     config));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{"n_kv_heads", &ModelConfig::set_num_query_groups, config.num_attention_heads()},
                  {"use_scaled_rope", &ModelConfig::set_use_rope_scaling}},
                 config));
  const bool scaled = config.use_rope_scaling();
  if (scaled) {
    if (!fields.Has("rope_scaling_factor")) {
      return absl::InvalidArgumentError(
          "params.json has use_scaled_rope, but does not tell the factor: add "
          "\"rope_scaling_factor\", which is 8 in Llama 3.1 and 32 in Llama 3.2");
    }
    TESSERA_RETURN_IF_ERROR(ReadFields(
        fields, {{"rope_scaling_factor", &ModelConfig::set_rope_scaling_factor}}, config));
  }
  config.set_untie_embeddings_and_output_weights(true);
  return ReadFields(fields,
                    {{"max_seq_len", &ModelConfig::set_max_position_embeddings,
                      scaled ? kScaledPositions : kMetaPositions}},
                    config);
}

// In the order of the modules, as all parameters are.
constexpr std::pair<const char*, const char*> kMetaLayerTensors[] = {
    {"attention.wq.weight", kQuery},   {"attention.wk.weight", kKey},
    {"attention.wv.weight", kValue},   {"attention.wo.weight", kOut},
    {"feed_forward.w1.weight", kGate}, {"feed_forward.w2.weight", kDown},
    {"feed_forward.w3.weight", kUp},   {"attention_norm.weight", kNorm1},
    {"ffn_norm.weight", kNorm2}};

template <bool kFusesQkv, bool kFusesGateUp>
std::vector<ForeignParameter> MetaParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), v = config.vocab_size();
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor("tok_embeddings.weight", kTokenEmbedding, {v, c}));
  const bool tied = !config.untie_embeddings_and_output_weights();
  if (tied) parameters.back().other_names = {"output.weight", "lm_head.weight"};
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const std::string prefix = absl::StrCat("layers.", layer, ".");
    if (kFusesQkv) {
      parameters.push_back(FusedQkv(config, prefix + "attention.qkv_linear.wqkv.weight", layer,
                                    RotaryRows::kPairs, /*transposed=*/false));
    }
    for (const auto& [name, tensor] : kMetaLayerTensors) {
      const std::string_view kind = tensor;
      const bool is_qkv = kind == kQuery || kind == kKey || kind == kValue;
      if ((kFusesQkv && is_qkv) || (kFusesGateUp && kind == kUp)) continue;
      parameters.push_back(PairedTensor(config, layer, tensor, prefix + name));
      if (kFusesGateUp && kind == kGate) {
        parameters.back() = StackLayers(prefix + "feed_forward.w13.weight",
                                        {parameters.back(), PairedTensor(config, layer, kUp, "")});
      }
      // torchtitan has queries, keys and values in a module of their own.
      if (is_qkv) {
        parameters.back().other_names.push_back(
            absl::StrReplaceAll(parameters.back().name, {{"attention.", "attention.qkv_linear."}}));
      }
    }
  }
  parameters.push_back(SameTensor("norm.weight", kFinalNorm, {c}));
  if (!tied) {
    parameters.push_back(SameTensor("output.weight", kHead, {v, c}));
    parameters.back().other_names.emplace_back("lm_head.weight");
  }
  parameters.push_back({.name = "rope.freqs"});  // computed, in old files
  return parameters;
}

}  // namespace

constinit const ForeignFormat kMetaFormat = {.framework = kMeta,
                                             .describes = DescribesMeta,
                                             .read_config = ReadMetaConfig,
                                             .parameters = MetaParameters<false, false>};

constinit const ForeignFormat kTorchtitanFormat = {.framework = kTorchtitan,
                                                   .describes = DescribesNothing,
                                                   .parameters = MetaParameters<true, true>};

constinit const ForeignFormat kTorchtitanQkvFormat = {.framework = kTorchtitanQkv,
                                                      .describes = DescribesNothing,
                                                      .parameters = MetaParameters<true, false>};

constinit const ForeignFormat kTorchtitanGateUpFormat = {.framework = kTorchtitanGateUp,
                                                         .describes = DescribesNothing,
                                                         .parameters = MetaParameters<false, true>};

}  // namespace tessera::llama3
