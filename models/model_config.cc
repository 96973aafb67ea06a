#include "models/model_config.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/gpt2/config.h"
#include "models/llama3/config.h"

namespace tessera {
namespace {

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What the named size says, or nothing where no size is named.
absl::StatusOr<ModelConfig> Base(const std::string& size) {
  if (size.empty()) return ModelConfig();
  if (Contains(gpt2::SizeNames(), size)) return gpt2::NamedSize(size);
  if (Contains(llama3::SizeNames(), size)) return llama3::NamedSize(size);
  std::vector<std::string> known;
  for (const std::string_view name : ModelSizeNames()) known.emplace_back(name);
  return absl::InvalidArgumentError(
      absl::StrCat("size is \"", size, "\": it must be one of ", absl::StrJoin(known, ", ")));
}

}  // namespace

std::vector<std::string_view> ModelSizeNames() {
  std::vector<std::string_view> names(gpt2::SizeNames().begin(), gpt2::SizeNames().end());
  names.insert(names.end(), llama3::SizeNames().begin(), llama3::SizeNames().end());
  return names;
}

absl::StatusOr<ModelConfig> ResolveModelConfig(const ModelConfig& config) {
  absl::StatusOr<ModelConfig> base = Base(config.size());
  if (!base.ok()) return base.status();
  if (!config.size().empty() && config.architecture() != ModelConfig::ARCHITECTURE_UNSPECIFIED &&
      config.architecture() != base->architecture()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "architecture is ", ModelConfig::Architecture_Name(config.architecture()), ", but size \"",
        config.size(), "\" is ", ModelConfig::Architecture_Name(base->architecture())));
  }
  ModelConfig resolved = *std::move(base);
  resolved.MergeFrom(config);
  absl::Status status;
  switch (resolved.architecture()) {
    case ModelConfig::GPT2:
      gpt2::FillDefaults(resolved);
      status = gpt2::Validate(resolved);
      break;
    case ModelConfig::LLAMA3:
      llama3::FillDefaults(resolved);
      status = llama3::Validate(resolved);
      break;
    default:
      status = absl::InvalidArgumentError(
          "architecture is missing: give --size, or --architecture with gpt2 or llama3");
  }
  if (!status.ok()) return status;
  return resolved;
}

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t vocabulary = config.vocab_size() * c;
  if (config.architecture() == ModelConfig::GPT2) {
    const int64_t block = (3 * c * c + 3 * c) + (c * c + c) + (c * f + f) + (f * c + c) + 4 * c;
    return vocabulary + config.max_position_embeddings() * c + config.num_layers() * block + 2 * c;
  }
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  const int64_t block = c * (c + 2 * kv) + c * c + 3 * c * f + 2 * c;
  return (config.untie_embeddings_and_output_weights() ? 2 : 1) * vocabulary +
         config.num_layers() * block + c;
}

int64_t HeadInLayers(const ModelConfig& model) {
  const double c = static_cast<double>(model.hidden_size());
  const double f = static_cast<double>(model.ffn_hidden_size());
  const double kv = c / static_cast<double>(model.num_attention_heads()) *
                    static_cast<double>(model.num_query_groups());
  const double mlp_matrices = model.architecture() == ModelConfig::LLAMA3 ? 3 : 2;
  const double layer = 2 * c * c + 2 * c * kv + mlp_matrices * c * f;
  return std::llround(static_cast<double>(model.vocab_size()) * c / layer);
}

}  // namespace tessera
