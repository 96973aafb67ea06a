#include "tests/third_architecture/positionless.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/config/config_checks.h"
#include "models/layers/declare.h"
#include "models/layers/decoder.h"
#include "models/layers/embedding.h"

namespace tessera::testing {
namespace {

std::string LayerName(int64_t layer, std::string_view tensor) {
  return absl::StrCat("net.", layer, ".", absl::string_view(tensor.data(), tensor.size()));
}

struct Norm {
  Parameter *weight, *bias;  // [C]
};

struct BlockParameters {
  Norm attention_norm, mlp_norm;
  std::vector<Parameter*> qkv, projection, up, down;  // by virtual shard
};

struct StageParameters {
  std::vector<VocabularyShard> table;
  std::vector<BlockParameters> blocks;
  Norm final_norm = {};
  DecoderLayout layout;
};

Norm DeclareNorm(const std::string& name, int64_t channels, Place place, ParameterSet& set) {
  return {&set.Add(WholeParameter(name + ".scale", {channels}, place, kInitOnes)),
          &set.Add(WholeParameter(name + ".shift", {channels}, place, kInitZeros))};
}

BlockParameters DeclareBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                             ParameterSet& set) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const Place place = InLayer(layer);
  const std::vector<VirtualShard> shards = LocalShards(*options.tensor_parallel);
  const auto declare = [&](const char* name, const Shape& shape, const Partition& partition) {
    std::vector<Parameter*> parameters;
    for (const VirtualShard& shard : shards) {
      parameters.push_back(&set.Add(ShardedParameter(LayerName(layer, name), shape, partition,
                                                     shard, InitNormal(config.init_method_std()))));
    }
    return parameters;
  };
  BlockParameters p;
  p.attention_norm = DeclareNorm(LayerName(layer, "attention_norm"), c, place, set);
  p.qkv = declare("qkv", {c, 3 * c}, {.dim = 1, .sections = 3, .place = place});
  p.projection = declare("projection", {c, c}, {.dim = 0, .place = place});
  p.mlp_norm = DeclareNorm(LayerName(layer, "mlp_norm"), c, place, set);
  p.up = declare("up", {c, f}, {.dim = 1, .place = place});
  p.down = declare("down", {f, c}, {.dim = 0, .place = place});
  return p;
}

StageParameters Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
  const ChunkLayers& stage = *options.stage;
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const bool both_ends = stage.has_embedding && stage.has_head;
  const TableDeclaration table = {.name = "words",
                                  .vocab_size = config.vocab_size(),
                                  .padded_rows = PaddedVocabSize(config, tensor_parallel.shards()),
                                  .channels = config.hidden_size(),
                                  .place = kBothEnds,
                                  .init = InitNormal(config.init_method_std()),
                                  .tied_name = "answers",
                                  .has_second_grad = both_ends && options.separate_tied_gradients};
  StageParameters p;
  if (stage.has_embedding) {
    p.table = DeclareTable(table, tensor_parallel, set);
    if (both_ends && !table.has_second_grad) p.layout.shared_table_end = set.flat_elements();
  }
  for (int64_t layer = stage.first; layer < stage.last; ++layer) {
    p.layout.boundaries.push_back(set.flat_elements());
    p.blocks.push_back(DeclareBlock(config, options, layer, set));
  }
  p.layout.boundaries.push_back(set.flat_elements());
  if (stage.has_head) {
    p.final_norm = DeclareNorm("final_norm", config.hidden_size(), kAfterLayers, set);
    if (!stage.has_embedding) p.table = DeclareTable(table, tensor_parallel, set);
  }
  return p;
}

std::unique_ptr<LayerNorm> MakeNorm(const ModelConfig& config, const Norm& norm) {
  return std::make_unique<LayerNorm>(*norm.weight, *norm.bias, config.norm_epsilon());
}

TransformerBlock MakeBlock(const ModelConfig& config, const ModelOptions& options, int64_t layer,
                           const BlockParameters& p) {
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const int64_t heads = config.num_attention_heads() / tensor_parallel.shards();
  AttentionShape shape = {heads, heads, config.hidden_size() / config.num_attention_heads(),
                          tensor_parallel.first_shard() * heads};
  const auto linear = [](Parameter* weight) {
    return Linear(*weight, /*bias=*/nullptr, WeightLayout::kInOut);
  };
  const auto site = [&](const char* name) {
    return DropoutSite(config.hidden_dropout(), options.seed, LayerName(layer, name));
  };
  TransformerBlockParts parts;
  parts.attention_norm = MakeNorm(config, p.attention_norm);
  for (size_t shard = 0; shard < p.qkv.size(); ++shard) {
    parts.attention.push_back({.qkv = linear(p.qkv[shard]),
                               .attention = Attention(shape, site("attention_dropout"), nullptr),
                               .projection = linear(p.projection[shard])});
    shape.first_head += heads;
    parts.mlp.push_back({.up = linear(p.up[shard]), .down = linear(p.down[shard])});
  }
  parts.attention_residual = {nullptr, site("attention_end")};
  parts.mlp_norm = MakeNorm(config, p.mlp_norm);
  parts.activation = Activation::kGelu;
  parts.mlp_residual = {nullptr, site("mlp_end")};
  return TransformerBlock(std::move(parts));
}

void FillDefaults(ModelConfig& config) {
  if (!config.has_num_query_groups()) config.set_num_query_groups(config.num_attention_heads());
  if (!config.has_ffn_hidden_size()) config.set_ffn_hidden_size(2 * config.hidden_size());
  if (!config.has_make_vocab_size_divisible_by()) config.set_make_vocab_size_divisible_by(1);
  if (!config.has_norm_epsilon()) config.set_norm_epsilon(1e-5);
  if (!config.has_untie_embeddings_and_output_weights()) {
    config.set_untie_embeddings_and_output_weights(false);
  }
  if (!config.has_init_method_std()) config.set_init_method_std(0.05);
  if (!config.has_hidden_dropout()) config.set_hidden_dropout(0);
  if (!config.has_attention_dropout()) config.set_attention_dropout(0);
}

int64_t LayerMatrixWeights(const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return 4 * c * c + 2 * c * f;
}

int64_t ParameterCount(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  return config.vocab_size() * c + config.num_layers() * (LayerMatrixWeights(config) + 4 * c) +
         2 * c;
}

std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend) {
  DecoderParts parts;
  parts.parameters = std::make_unique<ParameterSet>();
  const StageParameters p = Declare(config, options, *parts.parameters);
  parts.parameters->Allocate(options.compute_dtype, backend.device(), options.with_gradients);
  parts.hidden_size = config.hidden_size();
  parts.tensor_parallel = *options.tensor_parallel;
  parts.sums_by_unit = options.sums_by_unit;
  parts.layout = p.layout;
  if (options.stage->has_embedding) {
    parts.embedding.emplace(p.table, /*positions=*/nullptr,
                            DropoutSite(config.hidden_dropout(), options.seed, "words_dropout"));
  }
  for (size_t i = 0; i < p.blocks.size(); ++i) {
    const int64_t layer = options.stage->first + static_cast<int64_t>(i);
    parts.blocks.push_back(MakeBlock(config, options, layer, p.blocks[i]));
  }
  if (options.stage->has_head) {
    parts.head.emplace(MakeNorm(config, p.final_norm), p.table, config.vocab_size());
  }
  parts.matrix_weights =
      config.num_layers() * LayerMatrixWeights(config) + config.vocab_size() * config.hidden_size();
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

}  // namespace

constinit const Architecture kPositionless = {.name = "positionless",
                                              .fill_defaults = FillDefaults,
                                              .validate = CheckCommonFields,
                                              .parameter_count = ParameterCount,
                                              .layer_matrix_weights = LayerMatrixWeights,
                                              .make_model = MakeModel};

}  // namespace tessera::testing
