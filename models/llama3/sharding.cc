#include "models/llama3/sharding.h"

#include <cmath>

#include "models/config/config_checks.h"
#include "models/layers/declare.h"

namespace tessera::llama3 {
namespace {

BlockParameters DeclareBlock(const ModelConfig& config, const TensorParallel& tensor_parallel,
                             int64_t layer, ParameterSet& set) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  const std::vector<VirtualShard> shards = LocalShards(tensor_parallel);
  const Initialization normal = InitNormal(config.init_method_std());
  // The residual stream sums 2L branches: scaled so that its variance does not grow with depth.
  const Initialization residual = InitNormal(
      config.init_method_std() / std::sqrt(2.0 * static_cast<double>(config.num_layers())));
  const auto name = [&](const char* tensor) { return LayerName(layer, tensor); };
  const Partition rows = {.dim = 0, .place = InLayer(layer)};
  const Partition columns = {.dim = 1, .place = InLayer(layer)};
  BlockParameters p;
  p.norm1 = &set.Add(WholeParameter(name(kNorm1), {c}, InLayer(layer), kInitOnes));
  for (const VirtualShard& shard : shards) {
    p.attention.push_back(
        {.qkv = &set.Add(ShardedParameter(
             {{name(kQuery), {c, c}}, {name(kKey), {kv, c}}, {name(kValue), {kv, c}}}, rows, shard,
             normal)),
         .out = &set.Add(ShardedParameter(name(kOut), {c, c}, columns, shard, residual))});
  }
  p.norm2 = &set.Add(WholeParameter(name(kNorm2), {c}, InLayer(layer), kInitOnes));
  for (const VirtualShard& shard : shards) {
    p.mlp.push_back(
        {.gate_up = &set.Add(
             ShardedParameter({{name(kGate), {f, c}}, {name(kUp), {f, c}}}, rows, shard, normal)),
         .down = &set.Add(ShardedParameter(name(kDown), {c, f}, columns, shard, residual))});
  }
  return p;
}

}  // namespace

StageParameters DeclareParameters(const ModelConfig& config, const ModelOptions& options,
                                  ParameterSet& set) {
  const ChunkLayers& stage = *options.stage;
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const bool tied = !config.untie_embeddings_and_output_weights();
  const bool tied_here = tied && stage.has_embedding && stage.has_head;
  const TableDeclaration table = {.name = kTokenEmbedding,
                                  .vocab_size = config.vocab_size(),
                                  .padded_rows = PaddedVocabSize(config, tensor_parallel.shards()),
                                  .channels = config.hidden_size(),
                                  .place = tied ? kBothEnds : kBeforeLayers,
                                  .init = InitNormal(config.init_method_std()),
                                  .tied_name = tied ? kHead : "",
                                  .has_second_grad = tied_here && options.separate_tied_gradients};
  StageParameters p;
  if (stage.has_embedding) {
    p.table = DeclareTable(table, tensor_parallel, set);
    if (tied_here && !table.has_second_grad) p.layout.shared_table_end = set.flat_elements();
  }
  for (int64_t layer = stage.first; layer < stage.last; ++layer) {
    p.layout.boundaries.push_back(set.flat_elements());
    p.blocks.push_back(DeclareBlock(config, tensor_parallel, layer, set));
  }
  p.layout.boundaries.push_back(set.flat_elements());
  if (!stage.has_head) return p;
  p.final_norm =
      &set.Add(WholeParameter(kFinalNorm, {config.hidden_size()}, kAfterLayers, kInitOnes));
  if (tied_here) {
    p.head = p.table;
    return p;
  }
  TableDeclaration head = table;
  if (!tied) {
    head.name = kHead;
    head.place = kAfterLayers;
  }
  p.head = DeclareTable(head, tensor_parallel, set);
  return p;
}

}  // namespace tessera::llama3
