#include "models/gpt2/config.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_checks.h"

namespace tessera::gpt2 {
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

constexpr auto kNames = SizeNamesOf(kSizes);

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

}  // namespace tessera::gpt2
