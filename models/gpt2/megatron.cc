#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/foreign/megatron_args.h"
#include "models/gpt2/foreign.h"
#include "models/gpt2/names.h"

namespace tessera::gpt2 {
namespace {

bool DescribesMegatron(const JsonFields& args) {
  return MegatronPositionEmbedding(args) == "learned_absolute";
}

absl::Status ReadMegatronConfig(const JsonFields& args, ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(args.Require("normalization", "LayerNorm"));
  TESSERA_RETURN_IF_ERROR(args.Require("add_bias_linear", true));
  TESSERA_RETURN_IF_ERROR(args.Require("swiglu", false));
  TESSERA_RETURN_IF_ERROR(args.Require("group_query_attention", false));
  return ReadMegatronSizes(args, config);
}

void WriteMegatronConfig(const ModelConfig& config, nlohmann::ordered_json& args) {
  WriteMegatronSizes(config, args);
  args["position_embedding_type"] = "learned_absolute";
  args["normalization"] = "LayerNorm";
  args["add_bias_linear"] = true;
  args["swiglu"] = false;
  args["bias_gelu_fusion"] = true;  // GELU's tanh form
}

// The parameters of one layer, in the order of the modules. Norms have two names: with and without
// Transformer Engine.
class MegatronLayerParameters {
 public:
  MegatronLayerParameters(const ModelConfig& config, std::string prefix, int64_t layer)
      : config_(config), prefix_(std::move(prefix)), layer_(layer) {}

  std::vector<ForeignParameter> All() const {
    const int64_t c = config_.hidden_size(), f = config_.ffn_hidden_size();
    return {
        Norm("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", kNorm1Weight),
        Norm("self_attention.linear_qkv.layer_norm_bias", "input_layernorm.bias", kNorm1Bias),
        Matrix("self_attention.linear_proj.weight", kProjectionWeight, c, c, 1),
        Vector("self_attention.linear_proj.bias", kProjectionBias, c, -1),
        QkvWeight(),
        QkvBias(),
        Norm("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight", kNorm2Weight),
        Norm("mlp.linear_fc1.layer_norm_bias", "pre_mlp_layernorm.bias", kNorm2Bias),
        Matrix("mlp.linear_fc1.weight", kUpWeight, c, f, 0),
        Vector("mlp.linear_fc1.bias", kUpBias, f, 0),
        Matrix("mlp.linear_fc2.weight", kDownWeight, f, c, 1),
        Vector("mlp.linear_fc2.bias", kDownBias, c, -1)};
  }

 private:
  std::string Logical(const char* tensor) const { return LayerName(layer_, tensor); }

  // `rows` and `columns` describe the logical matrix; `dim` counts the dims of Megatron's.
  ForeignParameter Matrix(const char* name, const char* tensor, int64_t rows, int64_t columns,
                          int dim) const {
    return TransposedMatrix(prefix_ + name, Logical(tensor), rows, columns, dim);
  }
  ForeignParameter Vector(const char* name, const char* tensor, int64_t size, int dim) const {
    return SameTensor(prefix_ + name, Logical(tensor), {size}, dim);
  }
  ForeignParameter Norm(const char* fused_name, const char* name, const char* tensor) const {
    ForeignParameter norm = Vector(fused_name, tensor, config_.hidden_size(), -1);
    norm.other_names.push_back(prefix_ + name);
    return norm;
  }

  // Calls add(first logical column, first row there, size) for the parts of each head.
  template <typename Add>
  void ForEachHeadPart(const Add& add) const {
    const int64_t c = config_.hidden_size(), heads = config_.num_attention_heads(), d = c / heads;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t part = 0; part < 3; ++part) {  // queries, keys, values
        add(part * c + head * d, (head * 3 + part) * d, d);
      }
    }
  }

  ForeignParameter QkvWeight() const {
    const int64_t c = config_.hidden_size();
    ForeignParameter qkv = Matrix("self_attention.linear_qkv.weight", kQkvWeight, c, 3 * c, 0);
    qkv.blocks.clear();
    ForEachHeadPart([&](int64_t column, int64_t row, int64_t size) {
      qkv.blocks.push_back({.name = Logical(kQkvWeight),
                            .offset = {0, column},
                            .shape = {c, size},
                            .foreign_offset = {row, 0},
                            .transposed = true});
    });
    return qkv;
  }
  ForeignParameter QkvBias() const {
    ForeignParameter qkv =
        Vector("self_attention.linear_qkv.bias", kQkvBias, 3 * config_.hidden_size(), 0);
    qkv.blocks.clear();
    ForEachHeadPart([&](int64_t column, int64_t row, int64_t size) {
      qkv.blocks.push_back({.name = Logical(kQkvBias),
                            .offset = {column},
                            .shape = {size},
                            .foreign_offset = {row}});
    });
    return qkv;
  }

  const ModelConfig& config_;
  const std::string prefix_;
  const int64_t layer_;
};

std::vector<ForeignParameter> MegatronParameters(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  std::vector<ForeignParameter> parameters;
  parameters.push_back(
      SameTensor("embedding.word_embeddings.weight", kTokenEmbedding, {config.vocab_size(), c}, 0));
  parameters.back().padded = true;
  parameters.back().other_names.push_back("output_layer.weight");
  parameters.push_back(SameTensor("embedding.position_embeddings.weight", kPositionEmbedding,
                                  {config.max_position_embeddings(), c}));
  AddMegatronLayers(
      config.num_layers(),
      [&](const std::string& prefix, int64_t layer) {
        return MegatronLayerParameters(config, prefix, layer).All();
      },
      parameters);
  parameters.push_back(SameTensor("decoder.final_layernorm.weight", kFinalNormWeight, {c}));
  parameters.push_back(SameTensor("decoder.final_layernorm.bias", kFinalNormBias, {c}));
  return parameters;
}

}  // namespace

constinit const ForeignFormat kMegatronFormat = {.framework = kMegatron,
                                                 .describes = DescribesMegatron,
                                                 .read_config = ReadMegatronConfig,
                                                 .write_config = WriteMegatronConfig,
                                                 .check = CheckHasBiases,
                                                 .parameters = MegatronParameters};

}  // namespace tessera::gpt2
