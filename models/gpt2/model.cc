#include "models/gpt2/model.h"

#include "models/gpt2/names.h"
#include "models/gpt2/sharding.h"
#include "models/layers/decoder.h"

namespace tessera::gpt2 {
namespace {

TransformerBlock MakeBlock(const ModelConfig& config, int64_t layer, const BlockParameters& p,
                           uint64_t seed) {
  const int64_t heads = config.num_attention_heads();
  const AttentionShape shape = {heads, heads, config.hidden_size() / heads};
  const double epsilon = config.norm_epsilon(), dropout = config.hidden_dropout();
  const auto linear = [](Parameter* weight, Parameter* bias) {
    return Linear(*weight, bias, WeightLayout::kInOut);
  };
  const auto site = [&](double probability, const char* name) {
    return DropoutSite(probability, seed, LayerName(layer, name));
  };
  return TransformerBlock(TransformerBlockParts{
      .attention_norm = std::make_unique<LayerNorm>(*p.norm1_weight, *p.norm1_bias, epsilon),
      .qkv = linear(p.qkv_weight, p.qkv_bias),
      .attention = Attention(shape, site(config.attention_dropout(), "attn.attn_dropout"), nullptr),
      .projection = linear(p.projection_weight, p.projection_bias),
      .attention_dropout = site(dropout, "attn.resid_dropout"),
      .mlp_norm = std::make_unique<LayerNorm>(*p.norm2_weight, *p.norm2_bias, epsilon),
      .up = linear(p.up_weight, p.up_bias),
      .activation = Activation::kGelu,
      .down = linear(p.down_weight, p.down_bias),
      .mlp_dropout = site(dropout, "mlp.dropout")});
}

int64_t MatrixWeights(const ModelConfig& config, const StageLayers& stage, size_t blocks) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return static_cast<int64_t>(blocks) * (4 * c * c + 2 * c * f) +
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
  if (stage.has_embedding) {
    parts.embedding.emplace(*p.token_embedding, p.position_embedding,
                            DropoutSite(config.hidden_dropout(), dropout_seed, "transformer.drop"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    parts.blocks.push_back(
        MakeBlock(config, stage.first_layer + static_cast<int64_t>(i), p.blocks[i], dropout_seed));
  }
  if (stage.has_head) {
    parts.head.emplace(std::make_unique<LayerNorm>(*p.final_norm_weight, *p.final_norm_bias,
                                                   config.norm_epsilon()),
                       *p.token_embedding, config.vocab_size());
  }
  parts.tied_head = stage.has_embedding && stage.has_head;
  parts.matrix_weights = MatrixWeights(config, stage, p.blocks.size());
  return std::make_unique<Decoder>(std::move(parts), backend);
}

}  // namespace tessera::gpt2
