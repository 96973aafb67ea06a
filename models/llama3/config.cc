#include "models/llama3/config.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"

namespace tessera::llama3 {
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

constexpr auto kNames = SizeNamesOf(kSizes);

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

}  // namespace tessera::llama3
