#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"

namespace tessera::gpt2 {
namespace {

// All norms have this one, whatever layer_norm_eps says.
constexpr double kPaddleNormEpsilon = 1e-5;

bool DescribesPaddle(const JsonFields& fields) {
  return fields.Text("model_type", "").value_or("") == "gpt";
}

// PaddleNLP leaves out fields that have its defaults.
absl::Status ReadPaddleConfig(const JsonFields& fields, ModelConfig& config) {
  // GPTDecoderLayer computes it in its tanh form.
  TESSERA_RETURN_IF_ERROR(fields.Require("hidden_activation", "gelu"));
  TESSERA_RETURN_IF_ERROR(fields.Require("normalize_before", true));
  TESSERA_RETURN_IF_ERROR(fields.Require("scale_qk_coeff", 1.0));
  TESSERA_RETURN_IF_ERROR(
      ReadFields(fields,
                 {{"vocab_size", &ModelConfig::set_vocab_size, 50304},
                  {"num_hidden_layers", &ModelConfig::set_num_layers, 12},
                  {"hidden_size", &ModelConfig::set_hidden_size, 768},
                  {"num_attention_heads", &ModelConfig::set_num_attention_heads, 12},
                  {"intermediate_size", &ModelConfig::set_ffn_hidden_size, 3072},
                  {"max_position_embeddings", &ModelConfig::set_max_position_embeddings, 512}},
                 config));
  config.set_norm_epsilon(kPaddleNormEpsilon);
  return absl::OkStatus();
}

void WritePaddleConfig(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["model_type"] = "gpt";
  json["architectures"] = {"GPTForCausalLM"};
  json["vocab_size"] = config.vocab_size();
  json["num_hidden_layers"] = config.num_layers();
  json["hidden_size"] = config.hidden_size();
  json["num_attention_heads"] = config.num_attention_heads();
  json["intermediate_size"] = config.ffn_hidden_size();
  json["max_position_embeddings"] = config.max_position_embeddings();
  json["fuse_attention_qkv"] = false;
  json["hidden_dropout_prob"] = config.hidden_dropout();
  json["attention_probs_dropout_prob"] = config.attention_dropout();
}

absl::Status Check(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(CheckHasBiases(config));
  if (config.norm_epsilon() == kPaddleNormEpsilon) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its norm_epsilon is ", config.norm_epsilon(), ", not ", kPaddleNormEpsilon));
}

// Columns of a fused logical tensor, and where they are in the parameter.
struct Columns {
  int64_t logical = 0, foreign = 0, size = 0;
};

// Adds matrix and bias of a linear layer with all inputs and these columns of the logical one.
void AddLinear(const std::string& name, int64_t layer, const char* weight, const char* bias,
               int64_t inputs, const std::vector<Columns>& columns,
               std::vector<ForeignParameter>& parameters) {
  ForeignParameter matrix = {
      .name = name + ".weight", .shape = {inputs, 0}, .tensor_parallel_dim = 1};
  ForeignParameter vector = {.name = name + ".bias", .shape = {0}, .tensor_parallel_dim = 0};
  for (const Columns& some : columns) {
    matrix.shape[1] += some.size;
    vector.shape[0] += some.size;
    matrix.blocks.push_back({.name = LayerName(layer, weight),
                             .offset = {0, some.logical},
                             .shape = {inputs, some.size},
                             .foreign_offset = {0, some.foreign}});
    vector.blocks.push_back({.name = LayerName(layer, bias),
                             .offset = {some.logical},
                             .shape = {some.size},
                             .foreign_offset = {some.foreign}});
  }
  parameters.push_back(std::move(matrix));
  parameters.push_back(std::move(vector));
}

// Queries, keys and values one by one, or fused head by head.
void AddQueriesKeysValues(const ModelConfig& config, int64_t layer,
                          std::vector<ForeignParameter>& parameters) {
  const int64_t c = config.hidden_size(), heads = config.num_attention_heads(), d = c / heads;
  std::vector<Columns> fused;
  for (int64_t part = 0; part < 3; ++part) {
    const std::string name = absl::StrCat("self_attn.", std::string(1, "qkv"[part]), "_proj");
    AddLinear(name, layer, kQkvWeight, kQkvBias, c, {{part * c, 0, c}}, parameters);
    for (int64_t head = 0; head < heads; ++head) {
      fused.push_back({part * c + head * d, (head * 3 + part) * d, d});
    }
  }
  AddLinear("self_attn.qkv_proj", layer, kQkvWeight, kQkvBias, c, fused, parameters);
}

std::vector<ForeignParameter> PaddleLayerParameters(const ModelConfig& config, int64_t layer) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  std::vector<ForeignParameter> parameters;
  const auto vector = [&](const char* name, const char* tensor) {
    parameters.push_back(SameTensor(name, LayerName(layer, tensor), {c}));
  };
  // Tensor parallelism cuts the inputs; all ranks have the bias.
  const auto row_linear = [&](const char* name, const char* weight, const char* bias,
                              int64_t inputs) {
    parameters.push_back(
        SameTensor(absl::StrCat(name, ".weight"), LayerName(layer, weight), {inputs, c}, 0));
    parameters.push_back(SameTensor(absl::StrCat(name, ".bias"), LayerName(layer, bias), {c}));
  };
  AddQueriesKeysValues(config, layer, parameters);
  row_linear("self_attn.out_proj", kProjectionWeight, kProjectionBias, c);
  AddLinear("linear1", layer, kUpWeight, kUpBias, c, {{0, 0, f}}, parameters);
  row_linear("linear2", kDownWeight, kDownBias, f);
  vector("norm1.weight", kNorm1Weight);
  vector("norm1.bias", kNorm1Bias);
  vector("norm2.weight", kNorm2Weight);
  vector("norm2.bias", kNorm2Bias);
  return parameters;
}

std::vector<ForeignParameter> PaddleParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), layers = config.num_layers();
  std::vector<ForeignParameter> parameters;
  // `name` follows `prefix` in files of the whole model, and `module` in those of a pipeline, whose
  // names of layers are numbers.
  const auto add = [&](ForeignParameter parameter, const std::string& prefix,
                       const std::string& module) {
    parameter.other_names.push_back(absl::StrCat(module, ".", parameter.name));
    parameter.name = absl::StrCat(prefix, ".", parameter.name);
    parameters.push_back(std::move(parameter));
  };
  // What the first and the last stage of a pipeline share.
  const std::string shared = "shared_layers.gpt_shared_weight";
  add(SameTensor("word_embeddings.weight", kTokenEmbedding, {config.vocab_size(), c}, 0),
      "gpt.embeddings", shared);
  parameters.back().other_names.insert(parameters.back().other_names.end(),
                                       {"lm_head.weight", absl::StrCat(shared, ".weight")});
  add(SameTensor("position_embeddings.weight", kPositionEmbedding,
                 {config.max_position_embeddings(), c}),
      "gpt.embeddings", shared);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (ForeignParameter& parameter : PaddleLayerParameters(config, layer)) {
      add(std::move(parameter), absl::StrCat("gpt.decoder.layers.", layer),
          absl::StrCat(layer + 1));
    }
  }
  add(SameTensor("weight", kFinalNormWeight, {c}), "gpt.decoder.norm", absl::StrCat(layers + 1));
  add(SameTensor("bias", kFinalNormBias, {c}), "gpt.decoder.norm", absl::StrCat(layers + 1));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kPaddleFormat = {.framework = kPaddle,
                                               .describes = DescribesPaddle,
                                               .read_config = ReadPaddleConfig,
                                               .write_config = WritePaddleConfig,
                                               .check = Check,
                                               .parameters = PaddleParameters};

}  // namespace tessera::gpt2
