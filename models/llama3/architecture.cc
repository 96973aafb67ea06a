#include "models/llama3/architecture.h"

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"
#include "models/layers/decoder_family.h"
#include "models/llama3/foreign.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

// Llama-3.2 1B and 3B (tied), Llama-3.1 8B (untied), and a tiny size for tests.
constexpr NamedSize kSizes[] = {
    {"llama3-tiny",
     "num_layers: 2 hidden_size: 64 num_attention_heads: 4 num_query_groups: 2 "
     "ffn_multiplier: 1.0 ffn_multiple_of: 32 max_position_embeddings: 64 vocab_size: 256 "
     "rope_scaling_factor: 8 untie_embeddings_and_output_weights: false"},
    {"llama3-1b",
     "num_layers: 16 hidden_size: 2048 num_attention_heads: 32 num_query_groups: 8 "
     "ffn_multiplier: 1.5 ffn_multiple_of: 256 max_position_embeddings: 131072 vocab_size: 128256 "
     "rope_scaling_factor: 32 untie_embeddings_and_output_weights: false"},
    {"llama3-3b",
     "num_layers: 28 hidden_size: 3072 num_attention_heads: 24 num_query_groups: 8 "
     "ffn_multiplier: 1.0 ffn_multiple_of: 256 max_position_embeddings: 131072 vocab_size: 128256 "
     "rope_scaling_factor: 32 untie_embeddings_and_output_weights: false"},
    {"llama3-8b",
     "num_layers: 32 hidden_size: 4096 num_attention_heads: 32 num_query_groups: 8 "
     "ffn_multiplier: 1.3 ffn_multiple_of: 1024 max_position_embeddings: 131072 vocab_size: 128256 "
     "rope_scaling_factor: 8 untie_embeddings_and_output_weights: true"},
};

absl::Status ValidateRope(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckPositive("rotary_base", config.rotary_base()));
  const int64_t head_size = config.hidden_size() / config.num_attention_heads();
  if (head_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size / num_attention_heads is ",
                                                   head_size,
                                                   ": rotary embedding needs an even size"));
  }
  if (!config.use_rope_scaling()) return absl::OkStatus();
  const struct {
    const char* name;
    double value;
  } fields[] = {
      {"rope_scaling_factor", config.rope_scaling_factor()},
      {"rope_scaling_low_freq_factor", config.rope_scaling_low_freq_factor()},
      {"rope_scaling_high_freq_factor", config.rope_scaling_high_freq_factor()},
      {"rope_scaling_original_max_position_embeddings",
       static_cast<double>(config.rope_scaling_original_max_position_embeddings())},
  };
  for (const auto& field : fields) TESSERA_RETURN_IF_ERROR(CheckPositive(field.name, field.value));
  if (static_cast<float>(config.rope_scaling_high_freq_factor()) <=
      static_cast<float>(config.rope_scaling_low_freq_factor())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_scaling_high_freq_factor is ", config.rope_scaling_high_freq_factor(),
                     ": it must exceed rope_scaling_low_freq_factor (",
                     config.rope_scaling_low_freq_factor(), ")"));
  }
  return absl::OkStatus();
}

void FillRopeDefaults(ModelConfig& config) {
  if (!config.has_rotary_base()) config.set_rotary_base(500000);
  if (!config.has_use_rope_scaling()) config.set_use_rope_scaling(true);
  if (!config.has_rope_scaling_factor()) config.set_rope_scaling_factor(8);
  if (!config.has_rope_scaling_low_freq_factor()) config.set_rope_scaling_low_freq_factor(1);
  if (!config.has_rope_scaling_high_freq_factor()) config.set_rope_scaling_high_freq_factor(4);
  if (!config.has_rope_scaling_original_max_position_embeddings()) {
    config.set_rope_scaling_original_max_position_embeddings(8192);
  }
}

constexpr TensorNames kQkv[] = {{kQuery}, {kKey}, {kValue}};
constexpr TensorNames kGateUp[] = {{kGate}, {kUp}};

constexpr DecoderFamily kFamily = {.normalization = Normalization::kRmsNorm,
                                   .weight_layout = WeightLayout::kOutIn,
                                   .activation = Activation::kSwiGlu,
                                   .rotary = true,
                                   .token_embedding = kTokenEmbedding,
                                   .embedding_dropout = "model.embedding_dropout",
                                   .final_norm = {kFinalNorm},
                                   .head = kHead,
                                   .layer_name = LayerName,
                                   .attention_norm = {kNorm1},
                                   .qkv = kQkv,
                                   .attention_dropout = "self_attn.dropout",
                                   .projection = {kOut},
                                   .projection_dropout = "self_attn.residual_dropout",
                                   .mlp_norm = {kNorm2},
                                   .up = kGateUp,
                                   .down = {kDown},
                                   .down_dropout = "mlp.residual_dropout",
                                   .norms_come_last = true};

constexpr const ForeignFormat* kForeignFormats[] = {&kGgufFormat,
                                                    &kInfiniTrainFormat,
                                                    &kInternEvoFormat,
                                                    &kInternEvoPairedFormat,
                                                    &kMegatronFormat,
                                                    &kMetaFormat,
                                                    &kPaddleFormat,
                                                    &kTorchtitanFormat,
                                                    &kTorchtitanGateUpFormat,
                                                    &kTorchtitanQkvFormat};

}  // namespace

int64_t FfnHiddenSize(int64_t hidden_size, double multiplier, int64_t multiple_of) {
  const int64_t two_thirds = 8 * hidden_size / 3;  // of the usual 4 * hidden_size
  const double scaled = multiplier * static_cast<double>(two_thirds);
  // Validate() rejects these values; the cast would be undefined.
  if (!(scaled >= 0 && scaled <= kMaxExtent) || multiple_of < 1 || multiple_of > kMaxExtent) {
    return 0;
  }
  return RoundUp(static_cast<int64_t>(scaled), multiple_of);
}

void FillDefaults(ModelConfig& config) {
  FillCommonDefaults(config);
  if (!config.has_ffn_multiplier()) config.set_ffn_multiplier(1.3);
  if (!config.has_ffn_multiple_of()) config.set_ffn_multiple_of(1024);
  if (!config.has_ffn_hidden_size() && CheckExtent("", config.hidden_size()).ok()) {
    config.set_ffn_hidden_size(
        FfnHiddenSize(config.hidden_size(), config.ffn_multiplier(), config.ffn_multiple_of()));
  }
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(true);
  }
  FillRopeDefaults(config);
}

absl::Status Validate(const ModelConfig& config) {
  if (config.has_use_biases()) return NotForArchitecture("use_biases", "Llama-3");
  TESSERA_RETURN_IF_ERROR(CheckPositive("ffn_multiplier", config.ffn_multiplier()));
  TESSERA_RETURN_IF_ERROR(CheckExtent("ffn_multiple_of", config.ffn_multiple_of()));
  TESSERA_RETURN_IF_ERROR(CheckCommonFields(config));
  TESSERA_RETURN_IF_ERROR(CheckDivides("num_query_groups", config.num_query_groups(),
                                       "num_attention_heads", config.num_attention_heads()));
  return ValidateRope(config);
}

constinit const Architecture kArchitecture = {.name = "llama3",
                                              .value = ModelConfig::LLAMA3,
                                              .sizes = kSizes,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .make_model = DecoderOf<kFamily>::Make,
                                              .declare_parameters = DecoderOf<kFamily>::Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

}  // namespace tessera::llama3
