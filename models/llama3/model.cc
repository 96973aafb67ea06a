#include "models/llama3/model.h"

#include "models/layers/decoder.h"
#include "models/llama3/names.h"
#include "models/llama3/sharding.h"

namespace tessera::llama3 {
namespace {

Linear MakeLinear(Parameter* weight) {
  return Linear(*weight, /*bias=*/nullptr, WeightLayout::kOutIn);
}

TransformerBlock MakeBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                           const BlockParameters& p, const std::shared_ptr<Rope>& rope) {
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int shards = tensor_parallel.shards();
  const int64_t heads = config.num_attention_heads() / shards;
  AttentionShape shape = {heads, config.num_query_groups() / shards,
                          config.hidden_size() / config.num_attention_heads(),
                          tensor_parallel.first_shard() * heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, options.seed, LayerName(layer, name));
  };
  TransformerBlockParts parts;
  parts.attention_norm = std::make_unique<RmsNorm>(*p.norm1, epsilon);
  for (const AttentionParameters& shard : p.attention) {
    parts.attention.push_back(
        {.qkv = MakeLinear(shard.qkv),
         .attention = Attention(shape, site(config.attention_dropout(), "self_attn.dropout"), rope),
         .projection = MakeLinear(shard.out)});
    shape.first_head += heads;
  }
  parts.attention_residual = {/*bias=*/nullptr, site(dropout, "self_attn.residual_dropout")};
  parts.mlp_norm = std::make_unique<RmsNorm>(*p.norm2, epsilon);
  for (const MlpParameters& shard : p.mlp) {
    parts.mlp.push_back({.up = MakeLinear(shard.gate_up), .down = MakeLinear(shard.down)});
  }
  parts.activation = Activation::kSwiGlu;
  parts.mlp_residual = {/*bias=*/nullptr, site(dropout, "mlp.residual_dropout")};
  return TransformerBlock(std::move(parts));
}

std::shared_ptr<Rope> MakeRope(const ModelConfig& config) {
  RopeScaling scaling;
  scaling.enabled = config.use_rope_scaling();
  scaling.factor = config.rope_scaling_factor();
  scaling.low_frequency_factor = config.rope_scaling_low_freq_factor();
  scaling.high_frequency_factor = config.rope_scaling_high_freq_factor();
  scaling.original_max_positions =
      static_cast<double>(config.rope_scaling_original_max_position_embeddings());
  return std::make_shared<Rope>(config.hidden_size() / config.num_attention_heads(),
                                config.rotary_base(), scaling);
}

int64_t MatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  return config.num_layers() * (2 * c * c + 2 * c * kv + 3 * c * f) + config.vocab_size() * c;
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
  parts.rope = MakeRope(config);
  if (stage.has_embedding) {
    parts.embedding.emplace(
        p.table, /*positions=*/nullptr,
        DropoutSite(config.hidden_dropout(), options.seed, "model.embedding_dropout"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(
        MakeBlock(config, options, stage.first + static_cast<int64_t>(i), p.blocks[i], parts.rope));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<RmsNorm>(*p.final_norm, config.norm_epsilon()), p.head,
                       config.vocab_size());
  }
  parts.matrix_weights = MatrixWeights(config);
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

}  // namespace tessera::llama3
