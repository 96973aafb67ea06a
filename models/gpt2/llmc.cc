#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "models/config/config_checks.h"
#include "models/gpt2/architecture.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"

namespace tessera::gpt2 {
namespace {

enum Field { kPositions = 2, kVocabulary, kLayers, kHeads, kChannels, kPaddedVocabulary };

constexpr int32_t kUsualPadding = 128;
constexpr double kLlmcNormEpsilon = 1e-5;  // of all norms in llm.c

// Returns the padding rule that yields the file's padded size.
int64_t VocabularyMultiple(int32_t vocabulary, int32_t padded) {
  const int64_t usual = RoundUp(int64_t{vocabulary}, kUsualPadding);
  return usual == padded ? kUsualPadding : padded;
}

absl::StatusOr<ModelConfig> ReadLlmcConfig(const LlmcFile& file) {
  const LlmcHeader& header = file.header;
  for (int field = kPositions; field <= kPaddedVocabulary; ++field) {
    if (header[field] < 1) {
      return file.Corrupt(absl::StrCat("header field ", field, " is ", header[field]));
    }
  }
  if (header[kPaddedVocabulary] < header[kVocabulary]) {
    return file.Corrupt(absl::StrCat("padded vocabulary ", header[kPaddedVocabulary],
                                     " is below the vocabulary ", header[kVocabulary]));
  }
  const __int128 c = header[kChannels], layers = header[kLayers];
  const __int128 elements = (header[kPaddedVocabulary] + __int128{header[kPositions]}) * c +
                            layers * (12 * c * c + 13 * c) + 2 * c;
  if (auto status = file.CheckLength(elements); !status.ok()) return status;

  ModelConfig config;
  config.set_architecture(ModelConfig::GPT2);
  config.set_max_position_embeddings(header[kPositions]);
  config.set_vocab_size(header[kVocabulary]);
  config.set_num_layers(header[kLayers]);
  config.set_num_attention_heads(header[kHeads]);
  config.set_hidden_size(header[kChannels]);
  config.set_make_vocab_size_divisible_by(
      VocabularyMultiple(header[kVocabulary], header[kPaddedVocabulary]));
  config.set_norm_epsilon(kLlmcNormEpsilon);
  FillDefaults(config);
  if (auto valid = Validate(config); !valid.ok()) return file.Corrupt(std::string(valid.message()));
  return config;
}

absl::StatusOr<LlmcHeader> MakeHeader(const ModelConfig& config) {
  if (absl::Status status = CheckHasBiases(config); !status.ok()) return status;
  if (config.ffn_hidden_size() != 4 * config.hidden_size()) {
    return absl::InvalidArgumentError(absl::StrCat("ffn_hidden_size is ", config.ffn_hidden_size(),
                                                   ": an llm.c file has 4 * ", "hidden_size (",
                                                   4 * config.hidden_size(), ")"));
  }
  if (config.norm_epsilon() != kLlmcNormEpsilon) {
    return absl::InvalidArgumentError(
        absl::StrCat("norm_epsilon is ", config.norm_epsilon(),
                     ": an llm.c file has no field for it, and means ", kLlmcNormEpsilon));
  }
  LlmcHeader header = {};
  header[kPositions] = static_cast<int32_t>(config.max_position_embeddings());
  header[kVocabulary] = static_cast<int32_t>(config.vocab_size());
  header[kLayers] = static_cast<int32_t>(config.num_layers());
  header[kHeads] = static_cast<int32_t>(config.num_attention_heads());
  header[kChannels] = static_cast<int32_t>(config.hidden_size());
  header[kPaddedVocabulary] = static_cast<int32_t>(PaddedVocabSize(config));
  return header;
}

std::vector<ForeignParameter> Tensors(const ModelConfig& config, const LlmcHeader& header) {
  const int64_t c = config.hidden_size();
  const auto same = [](const char* name, Shape shape) {
    return SameTensor(name, name, std::move(shape));
  };
  std::vector<ForeignParameter> tensors;
  tensors.push_back(same(kTokenEmbedding, {config.vocab_size(), c}));
  tensors.back().shape[0] = header[kPaddedVocabulary];
  tensors.push_back(same(kPositionEmbedding, {config.max_position_embeddings(), c}));
  for (const auto& [tensor, shape] : LayerTensors(config)) {
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      const std::string name = LayerName(layer, tensor);
      tensors.push_back(OutByIn(name, name, shape));
    }
  }
  tensors.push_back(same(kFinalNormWeight, {c}));
  tensors.push_back(same(kFinalNormBias, {c}));
  return tensors;
}

}  // namespace

constinit const LlmcFormat kLlmcFormat = {.magic = 20240326,
                                          .model = "GPT-2",
                                          .read_config = ReadLlmcConfig,
                                          .make_header = MakeHeader,
                                          .tensors = Tensors};

}  // namespace tessera::gpt2
