#include "models/gpt2/model.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/config/config_checks.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/sharding.h"
#include "models/layers/decoder.h"

namespace tessera::gpt2 {
namespace {

Linear MakeLinear(Parameter* weight, Parameter* bias) {
  return Linear(*weight, bias, WeightLayout::kInOut);
}

TransformerBlock MakeBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                           const BlockParameters& p, const Device& device) {
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int64_t heads = config.num_attention_heads() / tensor_parallel.shards();
  AttentionShape shape = {heads, heads, config.hidden_size() / config.num_attention_heads(),
                          tensor_parallel.first_shard() * heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, options.seed, LayerName(layer, name));
  };
  TransformerBlockParts parts;
  parts.attention_norm =
      std::make_unique<LayerNorm>(*p.norm1_weight, p.norm1_bias, epsilon, device);
  for (const AttentionParameters& shard : p.attention) {
    parts.attention.push_back(
        {.qkv = MakeLinear(shard.qkv_weight, shard.qkv_bias),
         .attention =
             Attention(shape, site(config.attention_dropout(), "attn.attn_dropout"), nullptr),
         .projection = MakeLinear(shard.projection_weight, nullptr)});
    shape.first_head += heads;
  }
  parts.attention_residual = {p.projection_bias, site(dropout, "attn.resid_dropout")};
  parts.mlp_norm = std::make_unique<LayerNorm>(*p.norm2_weight, p.norm2_bias, epsilon, device);
  for (const MlpParameters& shard : p.mlp) {
    parts.mlp.push_back({.up = MakeLinear(shard.up_weight, shard.up_bias),
                         .down = MakeLinear(shard.down_weight, nullptr)});
  }
  parts.activation = Activation::kGelu;
  parts.mlp_residual = {p.down_bias, site(dropout, "mlp.dropout")};
  return TransformerBlock(std::move(parts));
}

int64_t LayerMatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return 4 * c * c + 2 * c * f;
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend) {
  const ChunkLayers& stage = *options.stage;
  DecoderParts parts;
  parts.parameters = std::make_unique<ParameterSet>();
  const StageParameters p = DeclareParameters(config, options, *parts.parameters);
  parts.parameters->Allocate(options.compute_dtype, backend.device(), options.with_gradients);
  parts.hidden_size = config.hidden_size();
  parts.tensor_parallel = *options.tensor_parallel;
  parts.sums_by_unit = options.sums_by_unit;
  parts.layout = p.layout;
  if (stage.has_embedding) {
    parts.embedding.emplace(p.table, p.position_embedding,
                            DropoutSite(config.hidden_dropout(), options.seed, "transformer.drop"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(MakeBlock(config, options, stage.first + static_cast<int64_t>(i),
                                     p.blocks[i], backend.device()));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<LayerNorm>(*p.final_norm_weight, p.final_norm_bias,
                                                   config.norm_epsilon(), backend.device()),
                       p.table, config.vocab_size());
  }
  parts.matrix_weights =
      config.num_layers() * LayerMatrixWeights(config) + config.vocab_size() * config.hidden_size();
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

namespace {

constexpr const ForeignFormat* kForeignFormats[] = {
    &kGgufFormat, &kInfiniTrainFormat, &kMegatronFormat, &kNanoGptFormat, &kPaddleFormat};

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t with_biases = HasBiases(config) ? 1 : 0;
  const int64_t biases = with_biases * (3 * c + c + f + c), norm = (1 + with_biases) * c;
  return (config.vocab_size() + config.max_position_embeddings()) * c +
         config.num_layers() * (LayerMatrixWeights(config) + biases + 2 * norm) + norm;
}

void Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
  DeclareParameters(config, options, set);
}

}  // namespace

constinit const Architecture kArchitecture = {.name = "gpt2",
                                              .value = ModelConfig::GPT2,
                                              .size_names = SizeNames,
                                              .named_size = NamedSize,
                                              .fill_defaults = FillDefaults,
                                              .validate = Validate,
                                              .parameter_count = ParameterCount,
                                              .layer_matrix_weights = LayerMatrixWeights,
                                              .make_model = MakeModel,
                                              .declare_parameters = Declare,
                                              .hugging_face = &kHuggingFaceFormat,
                                              .llmc = &kLlmcFormat,
                                              .foreign_formats = kForeignFormats};

namespace {

struct Size {
  std::string_view name;
  int64_t layers, hidden, heads, positions, vocabulary;
};

constexpr Size kSizes[] = {
    {"gpt2-tiny", 2, 64, 4, 64, 256},          {"gpt2-124m", 12, 768, 12, 1024, 50257},
    {"gpt2-350m", 24, 1024, 16, 1024, 50257},  {"gpt2-774m", 36, 1280, 20, 1024, 50257},
    {"gpt2-1558m", 48, 1600, 25, 1024, 50257},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kSizes)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kSizes[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> SizeNames() { return kNames; }

ModelConfig NamedSize(std::string_view name) {
  ModelConfig config;
  for (const Size& size : kSizes) {
    if (size.name != name) continue;
    config.set_architecture(ModelConfig::GPT2);
    config.set_num_layers(size.layers);
    config.set_hidden_size(size.hidden);
    config.set_num_attention_heads(size.heads);
    config.set_max_position_embeddings(size.positions);
    config.set_vocab_size(size.vocabulary);
  }
  return config;
}

void FillDefaults(ModelConfig& config) {
  if (!config.has_num_query_groups()) config.set_num_query_groups(config.num_attention_heads());
  if (!config.has_ffn_hidden_size() && CheckExtent("", config.hidden_size()).ok()) {
    config.set_ffn_hidden_size(4 * config.hidden_size());
  }
  if (!config.has_make_vocab_size_divisible_by()) config.set_make_vocab_size_divisible_by(128);
  if (!config.has_norm_epsilon()) config.set_norm_epsilon(1e-5);
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(false);
  }
  if (!config.has_init_method_std()) config.set_init_method_std(0.02);
  if (!config.has_hidden_dropout()) config.set_hidden_dropout(0);
  if (!config.has_attention_dropout()) config.set_attention_dropout(0);
  if (config.use_biases()) config.clear_use_biases();
}

absl::Status Validate(const ModelConfig& config) {
  if (auto status = CheckCommonFields(config); !status.ok()) return status;
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

}  // namespace tessera::gpt2
