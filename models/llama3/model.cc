#include "models/llama3/model.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"
#include "models/layers/decoder.h"
#include "models/llama3/foreign.h"
#include "models/llama3/sharding.h"

namespace tessera::llama3 {
namespace {

Linear MakeLinear(Parameter* weight) {
  return Linear(*weight, /*bias=*/nullptr, WeightLayout::kOutIn);
}

TransformerBlock MakeBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                           const BlockParameters& p, const std::shared_ptr<Rope>& rope) {
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int shards = tensor_parallel.shards();
  const int64_t heads = config.num_attention_heads() / shards;
  AttentionShape shape = {heads, config.num_query_groups() / shards,
                          config.hidden_size() / config.num_attention_heads(),
                          tensor_parallel.first_shard() * heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, options.seed, LayerName(layer, name));
  };
  TransformerBlockParts parts;
  parts.attention_norm = std::make_unique<RmsNorm>(*p.norm1, epsilon);
  for (const AttentionParameters& shard : p.attention) {
    parts.attention.push_back(
        {.qkv = MakeLinear(shard.qkv),
         .attention = Attention(shape, site(config.attention_dropout(), "self_attn.dropout"), rope),
         .projection = MakeLinear(shard.out)});
    shape.first_head += heads;
  }
  parts.attention_residual = {/*bias=*/nullptr, site(dropout, "self_attn.residual_dropout")};
  parts.mlp_norm = std::make_unique<RmsNorm>(*p.norm2, epsilon);
  for (const MlpParameters& shard : p.mlp) {
    parts.mlp.push_back({.up = MakeLinear(shard.gate_up), .down = MakeLinear(shard.down)});
  }
  parts.activation = Activation::kSwiGlu;
  parts.mlp_residual = {/*bias=*/nullptr, site(dropout, "mlp.residual_dropout")};
  return TransformerBlock(std::move(parts));
}

std::shared_ptr<Rope> MakeRope(const ModelConfig& config, bool scaled) {
  RopeScaling scaling;
  scaling.enabled = scaled;
  scaling.factor = config.rope_scaling_factor();
  scaling.low_frequency_factor = config.rope_scaling_low_freq_factor();
  scaling.high_frequency_factor = config.rope_scaling_high_freq_factor();
  scaling.original_max_positions =
      static_cast<double>(config.rope_scaling_original_max_position_embeddings());
  return std::make_shared<Rope>(config.hidden_size() / config.num_attention_heads(),
                                config.rotary_base(), scaling);
}

int64_t LayerMatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  return 2 * c * c + 2 * c * kv + 3 * c * f;
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
  parts.rope = MakeRope(config, config.use_rope_scaling());
  if (stage.has_embedding) {
    parts.embedding.emplace(
        p.table, /*positions=*/nullptr,
        DropoutSite(config.hidden_dropout(), options.seed, "model.embedding_dropout"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(
        MakeBlock(config, options, stage.first + static_cast<int64_t>(i), p.blocks[i], parts.rope));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<RmsNorm>(*p.final_norm, config.norm_epsilon()), p.head,
                       config.vocab_size());
  }
  parts.matrix_weights =
      config.num_layers() * LayerMatrixWeights(config) + config.vocab_size() * config.hidden_size();
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

namespace {

constexpr const ForeignFormat* kForeignFormats[] = {
    &kGgufFormat,     &kInfiniTrainFormat, &kInternEvoFormat, &kInternEvoPairedFormat,
    &kMegatronFormat, &kMetaFormat,        &kPaddleFormat};

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  const int64_t tables = config.untie_embeddings_and_output_weights() ? 2 : 1;
  return tables * config.vocab_size() * c +
         config.num_layers() * (LayerMatrixWeights(config) + 2 * c) + c;
}

void Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
  DeclareParameters(config, options, set);
}

}  // namespace

constinit const Architecture kArchitecture = {.name = "llama3",
                                              .value = ModelConfig::LLAMA3,
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
  int64_t layers, hidden, heads, groups;
  double ffn_multiplier;
  int64_t ffn_multiple_of, positions, vocabulary;
  double rope_scaling_factor;
  bool untied;
};

constexpr Size kSizes[] = {
    {"llama3-tiny", 2, 64, 4, 2, 1.0, 32, 64, 256, 8, false},
    {"llama3-1b", 16, 2048, 32, 8, 1.5, 256, 131072, 128256, 32, false},
    {"llama3-3b", 28, 3072, 24, 8, 1.0, 256, 131072, 128256, 32, false},
    {"llama3-8b", 32, 4096, 32, 8, 1.3, 1024, 131072, 128256, 8, true},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kSizes)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kSizes[i].name;
  return names;
}();

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
  for (const auto& field : fields) {
    TESSERA_RETURN_IF_ERROR(CheckPositive(field.name, field.value));
  }
  if (config.rope_scaling_high_freq_factor() <= config.rope_scaling_low_freq_factor()) {
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

}  // namespace

std::vector<double> RopeFactors(const ModelConfig& config) {
  const std::shared_ptr<Rope> plain = MakeRope(config, false), scaled = MakeRope(config, true);
  std::vector<double> factors;
  for (size_t i = 0; i < plain->frequencies().size(); ++i) {
    factors.push_back(plain->frequencies()[i] / scaled->frequencies()[i]);
  }
  return factors;
}

std::span<const std::string_view> SizeNames() { return kNames; }

ModelConfig NamedSize(std::string_view name) {
  ModelConfig config;
  for (const Size& size : kSizes) {
    if (size.name != name) continue;
    config.set_architecture(ModelConfig::LLAMA3);
    config.set_num_layers(size.layers);
    config.set_hidden_size(size.hidden);
    config.set_num_attention_heads(size.heads);
    config.set_num_query_groups(size.groups);
    config.set_ffn_multiplier(size.ffn_multiplier);
    config.set_ffn_multiple_of(size.ffn_multiple_of);
    config.set_max_position_embeddings(size.positions);
    config.set_vocab_size(size.vocabulary);
    config.set_rope_scaling_factor(size.rope_scaling_factor);
    config.set_untie_embeddings_and_output_weights(size.untied);
  }
  return config;
}

int64_t FfnHiddenSize(int64_t hidden_size, double multiplier, int64_t multiple_of) {
  const int64_t two_thirds = 8 * hidden_size / 3;  // of the usual 4 * hidden_size
  const double scaled = multiplier * static_cast<double>(two_thirds);
  // Validate() rejects these values; the cast would be undefined.
  if (!(scaled >= 0 && scaled <= kMaxExtent) || multiple_of < 1 || multiple_of > kMaxExtent) {
    return 0;
  }
  return (static_cast<int64_t>(scaled) + multiple_of - 1) / multiple_of * multiple_of;
}

void FillDefaults(ModelConfig& config) {
  if (!config.has_num_query_groups()) config.set_num_query_groups(config.num_attention_heads());
  if (!config.has_ffn_multiplier()) config.set_ffn_multiplier(1.3);
  if (!config.has_ffn_multiple_of()) config.set_ffn_multiple_of(1024);
  if (!config.has_ffn_hidden_size() && CheckExtent("", config.hidden_size()).ok()) {
    config.set_ffn_hidden_size(
        FfnHiddenSize(config.hidden_size(), config.ffn_multiplier(), config.ffn_multiple_of()));
  }
  if (!config.has_make_vocab_size_divisible_by()) config.set_make_vocab_size_divisible_by(128);
  if (!config.has_norm_epsilon()) config.set_norm_epsilon(1e-5);
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(true);
  }
  if (!config.has_init_method_std()) config.set_init_method_std(0.02);
  FillRopeDefaults(config);
  if (!config.has_hidden_dropout()) config.set_hidden_dropout(0);
  if (!config.has_attention_dropout()) config.set_attention_dropout(0);
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

}  // namespace tessera::llama3
