#include "models/llama3/sharding.h"

#include <cmath>

#include "models/layers/declare.h"
#include "models/llama3/names.h"
#include "models/model_config.h"

namespace tessera::llama3 {
namespace {

BlockParameters DeclareBlock(const ModelConfig& config, int64_t layer, ParameterSet& set) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  const Initialization normal = InitNormal(config.init_method_std());
  // The residual stream sums 2L branches: scaled so that its variance does not grow with depth.
  const Initialization residual = InitNormal(
      config.init_method_std() / std::sqrt(2.0 * static_cast<double>(config.num_layers())));
  const auto name = [&](const char* tensor) { return LayerName(layer, tensor); };
  BlockParameters p;
  p.norm1 = &set.Add(WholeParameter(name(kNorm1), {c}, kInitOnes));
  p.qkv = &set.Add(
      StackedParameter({{name(kQuery), c}, {name(kKey), kv}, {name(kValue), kv}}, c, normal));
  p.out = &set.Add(WholeParameter(name(kOut), {c, c}, residual));
  p.norm2 = &set.Add(WholeParameter(name(kNorm2), {c}, kInitOnes));
  p.gate_up = &set.Add(StackedParameter({{name(kGate), f}, {name(kUp), f}}, c, normal));
  p.down = &set.Add(WholeParameter(name(kDown), {c, f}, residual));
  return p;
}

}  // namespace

StageParameters DeclareParameters(const ModelConfig& config, const StageLayers& stage,
                                  ParameterSet& set) {
  const int64_t c = config.hidden_size();
  const bool tied = !config.untie_embeddings_and_output_weights();
  const Initialization normal = InitNormal(config.init_method_std());
  StageParameters p;
  if (stage.has_embedding || (tied && stage.has_head)) {
    Parameter table =
        WholeParameter(kTokenEmbedding, {config.vocab_size(), c}, normal, PaddedVocabSize(config));
    if (tied) table.tied_name = kHead;
    p.token_embedding = &set.Add(std::move(table));
  }
  for (int64_t layer = stage.first_layer; layer < *stage.last_layer; ++layer) {
    p.blocks.push_back(DeclareBlock(config, layer, set));
  }
  if (stage.has_head) {
    p.final_norm = &set.Add(WholeParameter(kFinalNorm, {c}, kInitOnes));
    p.head = tied ? p.token_embedding
                  : &set.Add(WholeParameter(kHead, {config.vocab_size(), c}, normal,
                                            PaddedVocabSize(config)));
  }
  return p;
}

}  // namespace tessera::llama3
