#include "models/config/config_checks.h"

#include <numeric>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// With at most this many weights, everything computed from them fits int64 with room to spare.
constexpr double kMaxWeights = 1e15;

absl::Status CheckCountable(const ModelConfig& config) {
  const double hidden = static_cast<double>(config.hidden_size());
  const double layer = hidden * (4 * hidden + 3 * static_cast<double>(config.ffn_hidden_size()));
  const double weights = static_cast<double>(config.num_layers()) * layer +
                         2 * hidden * static_cast<double>(config.vocab_size()) +
                         hidden * static_cast<double>(config.max_position_embeddings());
  if (weights <= kMaxWeights) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "num_layers = ", config.num_layers(), ", hidden_size = ", config.hidden_size(),
      ", ffn_hidden_size = ", config.ffn_hidden_size(), ", vocab_size = ", config.vocab_size(),
      ": about ", weights, " weights, more than ", kMaxWeights));
}

}  // namespace

void FillCommonDefaults(ModelConfig& config) {
  if (!config.has_num_query_groups()) config.set_num_query_groups(config.num_attention_heads());
  if (!config.has_make_vocab_size_divisible_by()) config.set_make_vocab_size_divisible_by(128);
  if (!config.has_norm_epsilon()) config.set_norm_epsilon(1e-5);
  if (!config.has_init_method_std()) config.set_init_method_std(0.02);
  if (!config.has_hidden_dropout()) config.set_hidden_dropout(0);
  if (!config.has_attention_dropout()) config.set_attention_dropout(0);
}

absl::Status CheckCommonFields(const ModelConfig& config) {
  const struct {
    const char* name;
    bool present;
    int64_t value;
  } extents[] = {
      {"num_layers", config.has_num_layers(), config.num_layers()},
      {"hidden_size", config.has_hidden_size(), config.hidden_size()},
      {"num_attention_heads", config.has_num_attention_heads(), config.num_attention_heads()},
      {"num_query_groups", config.has_num_query_groups(), config.num_query_groups()},
      {"ffn_hidden_size", config.has_ffn_hidden_size(), config.ffn_hidden_size()},
      {"max_position_embeddings", config.has_max_position_embeddings(),
       config.max_position_embeddings()},
      {"vocab_size", config.has_vocab_size(), config.vocab_size()},
      {"make_vocab_size_divisible_by", config.has_make_vocab_size_divisible_by(),
       config.make_vocab_size_divisible_by()},
  };
  for (const auto& extent : extents) {
    if (!extent.present) {
      return absl::InvalidArgumentError(
          absl::StrCat(extent.name, " is missing: give it, or a named size"));
    }
    TESSERA_RETURN_IF_ERROR(CheckExtent(extent.name, extent.value));
  }
  TESSERA_RETURN_IF_ERROR(CheckCountable(config));
  TESSERA_RETURN_IF_ERROR(CheckDivides("num_attention_heads", config.num_attention_heads(),
                                       "hidden_size", config.hidden_size()));
  TESSERA_RETURN_IF_ERROR(CheckPositive("norm_epsilon", config.norm_epsilon()));
  TESSERA_RETURN_IF_ERROR(CheckPositive("init_method_std", config.init_method_std()));
  TESSERA_RETURN_IF_ERROR(CheckProbability("hidden_dropout", config.hidden_dropout()));
  return CheckProbability("attention_dropout", config.attention_dropout());
}

int64_t PaddedVocabSize(const ModelConfig& config, int64_t shards) {
  const int64_t multiple = std::lcm(config.make_vocab_size_divisible_by(), shards);
  return RoundUp(config.vocab_size(), multiple);
}

}  // namespace tessera
