#include "models/gpt2/sharding.h"

#include <cmath>
#include <utility>

#include "models/config/config_checks.h"
#include "models/layers/declare.h"

namespace tessera::gpt2 {
namespace {

// Declares the parameters of one block, in order.
class BlockDeclaration {
 public:
  BlockDeclaration(const ModelConfig& config, const TensorParallel& tensor_parallel, int64_t layer,
                   ParameterSet& set)
      : config_(config),
        shards_(LocalShards(tensor_parallel)),
        layer_(layer),
        set_(set),
        normal_(InitNormal(config.init_method_std())),
        // The residual stream sums 2L branches: scaled so that its variance does not grow with
        // depth.
        residual_(InitNormal(config.init_method_std() /
                             std::sqrt(2.0 * static_cast<double>(config.num_layers())))) {}

  BlockParameters Declare() {
    const int64_t c = config_.hidden_size();
    BlockParameters p;
    p.norm1_weight = Whole(kNorm1Weight, c, kInitOnes);
    p.norm1_bias = Bias(kNorm1Bias, c);
    for (const VirtualShard& shard : shards_) p.attention.push_back(Attention(shard));
    p.projection_bias = Bias(kProjectionBias, c);
    p.norm2_weight = Whole(kNorm2Weight, c, kInitOnes);
    p.norm2_bias = Bias(kNorm2Bias, c);
    for (const VirtualShard& shard : shards_) p.mlp.push_back(Mlp(shard));
    p.down_bias = Bias(kDownBias, c);
    return p;
  }

 private:
  Parameter* Whole(const char* tensor, int64_t size, Initialization init) {
    return &set_.Add(WholeParameter(LayerName(layer_, tensor), {size}, InLayer(layer_), init));
  }

  Parameter* Bias(const char* tensor, int64_t size) {
    return has_biases_ ? Whole(tensor, size, kInitZeros) : nullptr;
  }

  Parameter* Sharded(const char* tensor, Shape shape, int dim, const VirtualShard& shard,
                     Initialization init) {
    const Partition partition = {.dim = dim, .place = InLayer(layer_)};
    return &set_.Add(
        ShardedParameter(LayerName(layer_, tensor), std::move(shape), partition, shard, init));
  }

  // q, k and v are thirds of the last dim.
  Parameter* Thirds(const char* tensor, const Shape& shape, const VirtualShard& shard,
                    Initialization init) {
    const Partition partition = {
        .dim = static_cast<int>(shape.size()) - 1, .sections = 3, .place = InLayer(layer_)};
    return &set_.Add(ShardedParameter(LayerName(layer_, tensor), shape, partition, shard, init));
  }

  AttentionParameters Attention(const VirtualShard& shard) {
    const int64_t c = config_.hidden_size();
    AttentionParameters p;
    p.qkv_weight = Thirds(kQkvWeight, {c, 3 * c}, shard, normal_);
    p.qkv_bias = has_biases_ ? Thirds(kQkvBias, {3 * c}, shard, kInitZeros) : nullptr;
    p.projection_weight = Sharded(kProjectionWeight, {c, c}, 0, shard, residual_);
    return p;
  }

  MlpParameters Mlp(const VirtualShard& shard) {
    const int64_t c = config_.hidden_size(), f = config_.ffn_hidden_size();
    MlpParameters p;
    p.up_weight = Sharded(kUpWeight, {c, f}, 1, shard, normal_);
    p.up_bias = has_biases_ ? Sharded(kUpBias, {f}, 0, shard, kInitZeros) : nullptr;
    p.down_weight = Sharded(kDownWeight, {f, c}, 0, shard, residual_);
    return p;
  }

  const ModelConfig& config_;
  const bool has_biases_ = HasBiases(config_);
  const std::vector<VirtualShard> shards_;
  const int64_t layer_;
  ParameterSet& set_;
  const Initialization normal_;
  const Initialization residual_;
};

}  // namespace

StageParameters DeclareParameters(const ModelConfig& config, const ModelOptions& options,
                                  ParameterSet& set) {
  const ChunkLayers& stage = *options.stage;
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int64_t c = config.hidden_size();
  const Initialization normal = InitNormal(config.init_method_std());
  const bool both_ends = stage.has_embedding && stage.has_head;
  const TableDeclaration table = {.name = kTokenEmbedding,
                                  .vocab_size = config.vocab_size(),
                                  .padded_rows = PaddedVocabSize(config, tensor_parallel.shards()),
                                  .channels = c,
                                  .place = kBothEnds,
                                  .init = normal,
                                  .tied_name = kHead,
                                  .has_second_grad = both_ends && options.separate_tied_gradients};
  StageParameters p;
  if (stage.has_embedding) {
    p.table = DeclareTable(table, tensor_parallel, set);
    if (both_ends && !table.has_second_grad) p.layout.shared_table_end = set.flat_elements();
    p.position_embedding = &set.Add(WholeParameter(
        kPositionEmbedding, {config.max_position_embeddings(), c}, kBeforeLayers, normal));
  }
  for (int64_t layer = stage.first; layer < stage.last; ++layer) {
    p.layout.boundaries.push_back(set.flat_elements());
    p.blocks.push_back(BlockDeclaration(config, tensor_parallel, layer, set).Declare());
  }
  p.layout.boundaries.push_back(set.flat_elements());
  if (stage.has_head) {
    p.final_norm_weight = &set.Add(WholeParameter(kFinalNormWeight, {c}, kAfterLayers, kInitOnes));
    if (HasBiases(config)) {
      p.final_norm_bias = &set.Add(WholeParameter(kFinalNormBias, {c}, kAfterLayers, kInitZeros));
    }
    if (!stage.has_embedding) p.table = DeclareTable(table, tensor_parallel, set);
  }
  return p;
}

}  // namespace tessera::gpt2
