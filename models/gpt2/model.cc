#include "models/gpt2/model.h"

#include <utility>

#include "models/gpt2/names.h"
#include "models/gpt2/sharding.h"
#include "models/layers/decoder.h"

namespace tessera::gpt2 {
namespace {

Linear MakeLinear(Parameter* weight, Parameter* bias) {
  return Linear(*weight, bias, WeightLayout::kInOut);
}

TransformerBlock MakeBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                           const BlockParameters& p) {
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int64_t heads = config.num_attention_heads() / tensor_parallel.shards();
  AttentionShape shape = {heads, heads, config.hidden_size() / config.num_attention_heads(),
                          tensor_parallel.first_shard() * heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, options.seed, LayerName(layer, name));
  };
  TransformerBlockParts parts;
  parts.attention_norm = std::make_unique<LayerNorm>(*p.norm1_weight, *p.norm1_bias, epsilon);
  for (const AttentionParameters& shard : p.attention) {
    parts.attention.push_back(
        {.qkv = MakeLinear(shard.qkv_weight, shard.qkv_bias),
         .attention =
             Attention(shape, site(config.attention_dropout(), "attn.attn_dropout"), nullptr),
         .projection = MakeLinear(shard.projection_weight, nullptr)});
    shape.first_head += heads;
  }
  parts.attention_residual = {p.projection_bias, site(dropout, "attn.resid_dropout")};
  parts.mlp_norm = std::make_unique<LayerNorm>(*p.norm2_weight, *p.norm2_bias, epsilon);
  for (const MlpParameters& shard : p.mlp) {
    parts.mlp.push_back({.up = MakeLinear(shard.up_weight, shard.up_bias),
                         .down = MakeLinear(shard.down_weight, nullptr)});
  }
  parts.activation = Activation::kGelu;
  parts.mlp_residual = {p.down_bias, site(dropout, "mlp.dropout")};
  return TransformerBlock(std::move(parts));
}

int64_t MatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return config.num_layers() * (4 * c * c + 2 * c * f) + config.vocab_size() * c;
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend) {
  const ChunkLayers& stage = *options.stage;
  DecoderParts parts;
  parts.parameters = std::make_unique<ParameterSet>();
  const StageParameters p = DeclareParameters(config, options, *parts.parameters);
  parts.parameters->Allocate(options.compute_dtype, backend.device(), options.with_gradients);
  parts.hidden_size = config.hidden_size();
  parts.tensor_parallel = *options.tensor_parallel;
  parts.layout = p.layout;
  if (stage.has_embedding) {
    parts.embedding.emplace(p.table, p.position_embedding,
                            DropoutSite(config.hidden_dropout(), options.seed, "transformer.drop"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(
        MakeBlock(config, options, stage.first + static_cast<int64_t>(i), p.blocks[i]));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<LayerNorm>(*p.final_norm_weight, *p.final_norm_bias,
                                                   config.norm_epsilon()),
                       p.table, config.vocab_size());
  }
  parts.matrix_weights = MatrixWeights(config);
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

}  // namespace tessera::gpt2
