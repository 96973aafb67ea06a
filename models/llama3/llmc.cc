#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/llama3/architecture.h"
#include "models/llama3/foreign.h"
#include "models/llama3/fused_matrices.h"
#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

enum Field {
  kPositions = 2,
  kVocabulary,
  kLayers,
  kHeads,
  kKeyValueHeads,
  kChannels,
  kFfnMultiplier,
  kFfnMultipleOf,
  kNormEpsilon,
  kRotaryBase,
  kScaledRope,
  kMaxBatch,
  kVersionMajor,
  kVersionMinor
};

constexpr double kMultipliers[] = {1.3, 1.0, 1.5};  // of Llama's published sizes
constexpr double kLlmcEpsilon = 1e-5;               // of all of them

// An fp32 in the file stands for a decimal number: the shortest one that rounds to it.
double FromFloatBits(int32_t bits) {
  double value = 0;
  const auto text = absl::StrCat(absl::SixDigits(std::bit_cast<float>(bits)));
  if (absl::SimpleAtod(text, &value) && static_cast<float>(value) == std::bit_cast<float>(bits)) {
    return value;
  }
  return std::bit_cast<float>(bits);
}

int32_t FloatBits(double value) { return std::bit_cast<int32_t>(static_cast<float>(value)); }

__int128 ElementCount(const LlmcHeader& header, int64_t ffn_hidden_size) {
  const __int128 c = header[kChannels];
  const __int128 kv = c / header[kHeads] * header[kKeyValueHeads];
  return 2 * c * header[kVocabulary] + c +
         header[kLayers] * (2 * c + c * (c + 2 * kv) + c * c + 3 * c * ffn_hidden_size);
}

absl::Status ReadReals(const LlmcFile& file, ModelConfig& config) {
  const LlmcHeader& header = file.header;
  // No multiplier is near 2^20, and the bits of every fp32 from 1e-30 on are above it.
  if (header[kFfnMultiplier] > (1 << 20)) {
    config.set_ffn_multiplier(FromFloatBits(header[kFfnMultiplier]));
    config.set_norm_epsilon(FromFloatBits(header[kNormEpsilon]));
    config.set_rotary_base(FromFloatBits(header[kRotaryBase]));
    return absl::OkStatus();
  }
  if (header[kNormEpsilon] != 0) {
    return file.Corrupt(absl::StrCat("header field 10 is ", header[kNormEpsilon],
                                     ": neither the bits of a norm epsilon nor 0"));
  }
  config.set_norm_epsilon(kLlmcEpsilon);
  config.set_rotary_base(header[kRotaryBase]);
  config.set_ffn_multiplier(header[kFfnMultiplier]);
  for (const double multiplier : kMultipliers) {
    if (static_cast<int32_t>(multiplier) != header[kFfnMultiplier]) continue;
    config.set_ffn_multiplier(multiplier);
    const int64_t ffn = FfnHiddenSize(header[kChannels], multiplier, header[kFfnMultipleOf]);
    if (file.CheckLength(ElementCount(header, ffn)).ok()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadLlmcConfig(const LlmcFile& file) {
  const LlmcHeader& header = file.header;
  for (const int field :
       {kPositions, kVocabulary, kLayers, kHeads, kKeyValueHeads, kChannels, kFfnMultipleOf}) {
    if (header[field] < 1) {
      return file.Corrupt(absl::StrCat("header field ", field, " is ", header[field]));
    }
  }
  if (header[kScaledRope] != 0 && header[kScaledRope] != 1) {
    return file.Corrupt(
        absl::StrCat("header field 12 is ", header[kScaledRope], ": scaled rope is 0 or 1"));
  }
  ModelConfig config;
  config.set_architecture(ModelConfig::LLAMA3);
  config.set_max_position_embeddings(header[kPositions]);
  config.set_vocab_size(header[kVocabulary]);
  config.set_num_layers(header[kLayers]);
  config.set_num_attention_heads(header[kHeads]);
  config.set_num_query_groups(header[kKeyValueHeads]);
  config.set_hidden_size(header[kChannels]);
  config.set_ffn_multiple_of(header[kFfnMultipleOf]);
  config.set_use_rope_scaling(header[kScaledRope] == 1);
  config.set_untie_embeddings_and_output_weights(true);
  if (absl::Status status = ReadReals(file, config); !status.ok()) return status;
  FillDefaults(config);
  if (auto valid = Validate(config); !valid.ok()) return file.Corrupt(std::string(valid.message()));
  TESSERA_RETURN_IF_ERROR(file.CheckLength(ElementCount(header, config.ffn_hidden_size())));
  return config;
}

absl::StatusOr<LlmcHeader> MakeHeader(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckRopeScaling(config, /*states_factor=*/false));
  const int64_t by_rule =
      FfnHiddenSize(config.hidden_size(), config.ffn_multiplier(), config.ffn_multiple_of());
  if (by_rule != config.ffn_hidden_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ffn_hidden_size is ", config.ffn_hidden_size(), ", but ffn_multiplier (",
                     config.ffn_multiplier(), ") and ffn_multiple_of (", config.ffn_multiple_of(),
                     ") give ", by_rule, ": an llm.c file stores only these two"));
  }
  LlmcHeader header = {};
  header[kPositions] = static_cast<int32_t>(config.max_position_embeddings());
  header[kVocabulary] = static_cast<int32_t>(config.vocab_size());
  header[kLayers] = static_cast<int32_t>(config.num_layers());
  header[kHeads] = static_cast<int32_t>(config.num_attention_heads());
  header[kKeyValueHeads] = static_cast<int32_t>(config.num_query_groups());
  header[kChannels] = static_cast<int32_t>(config.hidden_size());
  header[kFfnMultiplier] = FloatBits(config.ffn_multiplier());
  header[kFfnMultipleOf] = static_cast<int32_t>(config.ffn_multiple_of());
  header[kNormEpsilon] = FloatBits(config.norm_epsilon());
  header[kRotaryBase] = FloatBits(config.rotary_base());
  header[kScaledRope] = config.use_rope_scaling() ? 1 : 0;
  header[kMaxBatch] = 4;
  header[kVersionMajor] = 3;
  header[kVersionMinor] = 1;
  return header;
}

std::vector<ForeignParameter> Tensors(const ModelConfig& config, const LlmcHeader&) {
  const Shape table = {config.vocab_size(), config.hidden_size()};
  std::vector<ForeignParameter> tensors;
  // Those of one layer after those of the one before.
  const auto layers = [&](std::initializer_list<const char*> names) {
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      for (const char* name : names) {
        tensors.push_back(PairedTensor(config, layer, name, LayerName(layer, name)));
      }
    }
  };
  tensors.push_back(SameTensor(kTokenEmbedding, kTokenEmbedding, table));
  layers({kNorm1});
  layers({kQuery, kKey, kValue});
  for (const char* name : {kOut, kNorm2, kUp, kGate, kDown}) layers({name});
  tensors.push_back(SameTensor(kFinalNorm, kFinalNorm, {config.hidden_size()}));
  tensors.push_back(SameTensor(kHead, kHead, table));
  return tensors;
}

}  // namespace

constinit const LlmcFormat kLlmcFormat = {.magic = 20240803,
                                          .model = "Llama-3",
                                          .read_config = ReadLlmcConfig,
                                          .make_header = MakeHeader,
                                          .tensors = Tensors};

}  // namespace tessera::llama3
