#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/foreign/gguf_fields.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/sharding.h"

namespace tessera::gpt2 {
namespace {

constexpr char kName[] = "gpt2";
constexpr char kEpsilon[] = "gpt2.attention.layer_norm_epsilon";

bool Describes(const JsonFields& fields) { return IsGgufArchitecture(fields, kName); }

absl::Status ReadConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(ReadGgufSizes(fields, kName, config));
  TESSERA_ASSIGN_OR_RETURN(const double epsilon, fields.Real(kEpsilon));
  config.set_norm_epsilon(epsilon);
  return absl::OkStatus();
}

void WriteConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  WriteGgufSizes(config, kName, json);
  json[kEpsilon] = config.norm_epsilon();
}

void AddLayer(const ModelConfig& config, int64_t layer, std::vector<ForeignParameter>& parameters) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const std::string prefix = absl::StrCat("blk.", layer, ".");
  const auto vector = [&](const char* name, const char* tensor, int64_t size) {
    parameters.push_back(SameTensor(prefix + name, LayerName(layer, tensor), {size}));
  };
  // `rows` and `columns` describe the logical matrix.
  const auto matrix = [&](const char* name, const char* tensor, int64_t rows, int64_t columns) {
    parameters.push_back(TransposedMatrix(prefix + name, LayerName(layer, tensor), rows, columns));
  };
  vector("attn_norm.weight", kNorm1Weight, c);
  vector("attn_norm.bias", kNorm1Bias, c);
  matrix("attn_qkv.weight", kQkvWeight, c, 3 * c);
  vector("attn_qkv.bias", kQkvBias, 3 * c);
  matrix("attn_output.weight", kProjectionWeight, c, c);
  vector("attn_output.bias", kProjectionBias, c);
  vector("ffn_norm.weight", kNorm2Weight, c);
  vector("ffn_norm.bias", kNorm2Bias, c);
  matrix("ffn_up.weight", kUpWeight, c, f);
  vector("ffn_up.bias", kUpBias, f);
  matrix("ffn_down.weight", kDownWeight, f, c);
  vector("ffn_down.bias", kDownBias, c);
}

std::vector<ForeignParameter> Parameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor(kGgufEmbedding, kTokenEmbedding, {config.vocab_size(), c}));
  parameters.back().other_names.emplace_back(kGgufHead);  // early converters copied the embedding
  parameters.push_back(SameTensor("position_embd.weight", kPositionEmbedding,
                                  {config.max_position_embeddings(), c}));
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    AddLayer(config, layer, parameters);
  }
  parameters.push_back(SameTensor("output_norm.weight", kFinalNormWeight, {c}));
  parameters.push_back(SameTensor("output_norm.bias", kFinalNormBias, {c}));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kGgufFormat = {.framework = kGguf,
                                             .describes = Describes,
                                             .read_config = ReadConfig,
                                             .write_config = WriteConfig,
                                             .parameters = Parameters};

}  // namespace tessera::gpt2
