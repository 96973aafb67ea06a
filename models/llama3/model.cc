#include "models/llama3/model.h"

#include "models/layers/decoder.h"
#include "models/llama3/names.h"
#include "models/llama3/sharding.h"

namespace tessera::llama3 {
namespace {

TransformerBlock MakeBlock(const ModelConfig& config, int64_t layer, const BlockParameters& p,
                           uint64_t seed, const std::shared_ptr<Rope>& rope) {
  const int64_t heads = config.num_attention_heads();
  const AttentionShape shape = {heads, config.num_query_groups(), config.hidden_size() / heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto linear = [](Parameter* weight) {
    return Linear(*weight, /*bias=*/nullptr, WeightLayout::kOutIn);
  };
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, seed, LayerName(layer, name));
  };
  return TransformerBlock(TransformerBlockParts{
      .attention_norm = std::make_unique<RmsNorm>(*p.norm1, epsilon),
      .qkv = linear(p.qkv),
      .attention = Attention(shape, site(config.attention_dropout(), "self_attn.dropout"), rope),
      .projection = linear(p.out),
      .attention_dropout = site(dropout, "self_attn.residual_dropout"),
      .mlp_norm = std::make_unique<RmsNorm>(*p.norm2, epsilon),
      .up = linear(p.gate_up),
      .activation = Activation::kSwiGlu,
      .down = linear(p.down),
      .mlp_dropout = site(dropout, "mlp.residual_dropout")});
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

int64_t MatrixWeights(const ModelConfig& config, const StageLayers& stage, size_t blocks) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  return static_cast<int64_t>(blocks) * (2 * c * c + 2 * c * kv + 3 * c * f) +
         (stage.has_head ? config.vocab_size() * c : 0);
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend) {
  const StageLayers& stage = options.stage;
  const uint64_t dropout_seed = options.seed;
  DecoderParts parts;
  parts.parameters = std::make_unique<ParameterSet>();
  const StageParameters p = DeclareParameters(config, stage, *parts.parameters);
  parts.parameters->Allocate(options.compute_dtype, backend.device(), options.with_gradients);
  parts.hidden_size = config.hidden_size();
  parts.rope = MakeRope(config);
  if (stage.has_embedding) {
    parts.embedding.emplace(
        *p.token_embedding, /*positions=*/nullptr,
        DropoutSite(config.hidden_dropout(), dropout_seed, "model.embedding_dropout"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(MakeBlock(config, stage.first_layer + static_cast<int64_t>(i),
                                     p.blocks[i], dropout_seed, parts.rope));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<RmsNorm>(*p.final_norm, config.norm_epsilon()), *p.head,
                       config.vocab_size());
  }
  parts.tied_head = stage.has_embedding && p.head == p.token_embedding;
  parts.matrix_weights = MatrixWeights(config, stage, p.blocks.size());
  return std::make_unique<Decoder>(std::move(parts), backend);
}

}  // namespace tessera::llama3
