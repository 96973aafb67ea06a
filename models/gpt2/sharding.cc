#include "models/gpt2/sharding.h"

#include <cmath>

#include "models/gpt2/names.h"
#include "models/layers/declare.h"
#include "models/model_config.h"

namespace tessera::gpt2 {
namespace {

BlockParameters DeclareBlock(const ModelConfig& config, int64_t layer, ParameterSet& set) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const Initialization normal = InitNormal(config.init_method_std());
  // The residual stream sums 2L branches: scaled so that its variance does not grow with depth.
  const Initialization residual = InitNormal(
      config.init_method_std() / std::sqrt(2.0 * static_cast<double>(config.num_layers())));
  const auto add = [&](const char* tensor, Shape shape, Initialization init) {
    return &set.Add(WholeParameter(LayerName(layer, tensor), std::move(shape), init));
  };
  BlockParameters p;
  p.norm1_weight = add(kNorm1Weight, {c}, kInitOnes);
  p.norm1_bias = add(kNorm1Bias, {c}, kInitZeros);
  p.qkv_weight = add(kQkvWeight, {c, 3 * c}, normal);
  p.qkv_bias = add(kQkvBias, {3 * c}, kInitZeros);
  p.projection_weight = add(kProjectionWeight, {c, c}, residual);
  p.projection_bias = add(kProjectionBias, {c}, kInitZeros);
  p.norm2_weight = add(kNorm2Weight, {c}, kInitOnes);
  p.norm2_bias = add(kNorm2Bias, {c}, kInitZeros);
  p.up_weight = add(kUpWeight, {c, f}, normal);
  p.up_bias = add(kUpBias, {f}, kInitZeros);
  p.down_weight = add(kDownWeight, {f, c}, residual);
  p.down_bias = add(kDownBias, {c}, kInitZeros);
  return p;
}

}  // namespace

StageParameters DeclareParameters(const ModelConfig& config, const StageLayers& stage,
                                  ParameterSet& set) {
  const int64_t c = config.hidden_size();
  const Initialization normal = InitNormal(config.init_method_std());
  StageParameters p;
  if (stage.has_embedding || stage.has_head) {
    Parameter table =
        WholeParameter(kTokenEmbedding, {config.vocab_size(), c}, normal, PaddedVocabSize(config));
    table.tied_name = kHead;
    p.token_embedding = &set.Add(std::move(table));
  }
  if (stage.has_embedding) {
    p.position_embedding =
        &set.Add(WholeParameter(kPositionEmbedding, {config.max_position_embeddings(), c}, normal));
  }
  for (int64_t layer = stage.first_layer; layer < *stage.last_layer; ++layer) {
    p.blocks.push_back(DeclareBlock(config, layer, set));
  }
  if (stage.has_head) {
    p.final_norm_weight = &set.Add(WholeParameter(kFinalNormWeight, {c}, kInitOnes));
    p.final_norm_bias = &set.Add(WholeParameter(kFinalNormBias, {c}, kInitZeros));
  }
  return p;
}

}  // namespace tessera::gpt2
