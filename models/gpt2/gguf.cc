#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/foreign/gguf_fields.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"

namespace tessera::gpt2 {
namespace {

constexpr char kName[] = "gpt2";
// The modules of a layer, in the order of LayerTensors().
constexpr const char* kModules[] = {"attn_norm", "attn_qkv", "attn_output",
                                    "ffn_norm",  "ffn_up",   "ffn_down"};
constexpr char kEpsilon[] = "gpt2.attention.layer_norm_epsilon";

bool DescribesGguf(const JsonFields& fields) { return IsGgufArchitecture(fields, kName); }

absl::Status ReadGgufConfig(const JsonFields& fields, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(ReadGgufSizes(fields, kName, config));
  TESSERA_ASSIGN_OR_RETURN(const double epsilon, fields.Real(kEpsilon));
  config.set_norm_epsilon(epsilon);
  return absl::OkStatus();
}

void WriteGgufConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  WriteGgufSizes(config, kName, json);
  json[kEpsilon] = config.norm_epsilon();
}

std::vector<ForeignParameter> GgufParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  std::vector<ForeignParameter> parameters;
  parameters.push_back(SameTensor(kGgufEmbedding, kTokenEmbedding, {config.vocab_size(), c}));
  parameters.back().other_names.emplace_back(kGgufHead);  // early converters copied the embedding
  parameters.push_back(SameTensor("position_embd.weight", kPositionEmbedding,
                                  {config.max_position_embeddings(), c}));
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const std::vector<LayerTensor> tensors = LayerTensors(config);
    for (size_t i = 0; i < tensors.size(); ++i) {
      parameters.push_back(OutByIn(
          absl::StrCat("blk.", layer, ".", kModules[i / 2], i % 2 == 0 ? ".weight" : ".bias"),
          LayerName(layer, tensors[i].name), tensors[i].shape));
    }
  }
  parameters.push_back(SameTensor("output_norm.weight", kFinalNormWeight, {c}));
  parameters.push_back(SameTensor("output_norm.bias", kFinalNormBias, {c}));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kGgufFormat = {.framework = kGguf,
                                             .describes = DescribesGguf,
                                             .read_config = ReadGgufConfig,
                                             .write_config = WriteGgufConfig,
                                             .check = CheckHasBiases,
                                             .parameters = GgufParameters};

}  // namespace tessera::gpt2
