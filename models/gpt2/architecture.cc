#include "models/gpt2/architecture.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"
#include "models/layers/decoder_family.h"

namespace tessera::gpt2 {
namespace {

// OpenAI's sizes, and a tiny one for tests.
constexpr NamedSize kSizes[] = {
    {"gpt2-tiny",
     "num_layers: 2 hidden_size: 64 num_attention_heads: 4 max_position_embeddings: 64 "
     "vocab_size: 256"},
    {"gpt2-124m",
     "num_layers: 12 hidden_size: 768 num_attention_heads: 12 max_position_embeddings: 1024 "
     "vocab_size: 50257"},
    {"gpt2-350m",
     "num_layers: 24 hidden_size: 1024 num_attention_heads: 16 max_position_embeddings: 1024 "
     "vocab_size: 50257"},
    {"gpt2-774m",
     "num_layers: 36 hidden_size: 1280 num_attention_heads: 20 max_position_embeddings: 1024 "
     "vocab_size: 50257"},
    {"gpt2-1558m",
     "num_layers: 48 hidden_size: 1600 num_attention_heads: 25 max_position_embeddings: 1024 "
     "vocab_size: 50257"},
};

constexpr TensorNames kQkv[] = {{kQkvWeight, kQkvBias}};
constexpr TensorNames kUp[] = {{kUpWeight, kUpBias}};

constexpr DecoderFamily kFamily = {.normalization = Normalization::kLayerNorm,
                                   .weight_layout = WeightLayout::kInOut,
                                   .activation = Activation::kGelu,
                                   .token_embedding = kTokenEmbedding,
                                   .position_embedding = kPositionEmbedding,
                                   .embedding_dropout = "transformer.drop",
                                   .final_norm = {kFinalNormWeight, kFinalNormBias},
                                   .head = kHead,
                                   .layer_name = LayerName,
                                   .attention_norm = {kNorm1Weight, kNorm1Bias},
                                   .qkv = kQkv,
                                   .attention_dropout = "attn.attn_dropout",
                                   .projection = {kProjectionWeight, kProjectionBias},
                                   .projection_dropout = "attn.resid_dropout",
                                   .mlp_norm = {kNorm2Weight, kNorm2Bias},
                                   .up = kUp,
                                   .down = {kDownWeight, kDownBias},
                                   .down_dropout = "mlp.dropout"};

constexpr const ForeignFormat* kForeignFormats[] = {
    &kGgufFormat, &kInfiniTrainFormat, &kMegatronFormat, &kNanoGptFormat, &kPaddleFormat};

}  // namespace

void FillDefaults(ModelConfig& config) {
  FillCommonDefaults(config);
  if (!config.has_ffn_hidden_size() && CheckExtent("", config.hidden_size()).ok()) {
    config.set_ffn_hidden_size(4 * config.hidden_size());
  }
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(false);
  }
  if (config.use_biases()) config.clear_use_biases();
}

absl::Status Validate(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckCommonFields(config));
  if (config.num_query_groups() != config.num_attention_heads()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_query_groups is ", config.num_query_groups(),
        ": GPT-2 has as many as num_attention_heads (", config.num_attention_heads(), ")"));
  }
  if (config.untie_embeddings_and_output_weights()) {
    return absl::InvalidArgumentError(
        "untie_embeddings_and_output_weights is true: GPT-2's are always tied");
  }
  const struct {
    const char* name;
    bool present;
  } foreign[] = {
      {"ffn_multiplier", config.has_ffn_multiplier()},
      {"ffn_multiple_of", config.has_ffn_multiple_of()},
      {"rotary_base", config.has_rotary_base()},
      {"use_rope_scaling", config.has_use_rope_scaling()},
      {"rope_scaling_factor", config.has_rope_scaling_factor()},
      {"rope_scaling_low_freq_factor", config.has_rope_scaling_low_freq_factor()},
      {"rope_scaling_high_freq_factor", config.has_rope_scaling_high_freq_factor()},
      {"rope_scaling_original_max_position_embeddings",
       config.has_rope_scaling_original_max_position_embeddings()},
  };
  for (const auto& field : foreign) {
    if (field.present) return NotForArchitecture(field.name, "GPT-2");
  }
  return absl::OkStatus();
}

constinit const Architecture kArchitecture = {.name = "gpt2",
                                              .value = ModelConfig::GPT2,
                                              .sizes = kSizes,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .make_model = DecoderOf<kFamily>::Make,
                                              .declare_parameters = DecoderOf<kFamily>::Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

}  // namespace tessera::gpt2
