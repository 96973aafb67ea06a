#include "models/layers/decoder_family.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "models/config/config_checks.h"
#include "models/layers/decoder.h"
#include "models/layers/norm.h"
#include "models/layers/transformer_block.h"

namespace tessera {
namespace {

// Returns the widths of q, k and v, of all heads.
std::vector<int64_t> QkvWidths(const ModelConfig& config) {
  const int64_t c = config.hidden_size();
  const int64_t kv = c / config.num_attention_heads() * config.num_query_groups();
  return {c, kv, kv};
}

// The widths of the activation's operands.
std::vector<int64_t> UpWidths(const DecoderFamily& family, const ModelConfig& config) {
  return std::vector<int64_t>(family.activation == Activation::kSwiGlu ? 2 : 1,
                              config.ffn_hidden_size());
}

int64_t TotalWidth(const std::vector<int64_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), int64_t{0});
}

// Returns the weights of one layer that take part in matrix products.
int64_t MatrixWeights(const DecoderFamily& family, const ModelConfig& config) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  return c * (TotalWidth(QkvWidths(config)) + c + TotalWidth(UpWidths(family, config)) + f);
}

// Adds parameters of one family and config to a set.
class DecoderDeclaration {
 public:
  DecoderDeclaration(const DecoderFamily& family, const ModelConfig& config,
                     const ModelOptions& options, ParameterSet& set)
      : family_(family),
        config_(config),
        shards_(LocalShards(*options.tensor_parallel)),
        set_(set),
        normal_(InitNormal(config.init_method_std())),
        // The residual stream sums 2L branches: scaled so that its variance does not grow with
        // depth.
        residual_(InitNormal(config.init_method_std() /
                             std::sqrt(2.0 * static_cast<double>(config.num_layers())))) {}

  DecoderLayerParameters Layer(int64_t layer) {
    layer_ = layer;
    const std::vector<int64_t> qkv = QkvWidths(config_), up = UpWidths(family_, config_);
    DecoderLayerParameters p;
    p.attention_norm = LayerVectors(family_.attention_norm);
    for (const VirtualShard& shard : shards_) {
      p.qkv.push_back(ColumnParallel(family_.qkv, qkv, shard));
      p.projection.push_back(RowParallel(family_.projection, config_.hidden_size(), shard));
    }
    p.projection_bias = WholeBias(family_.projection);
    p.mlp_norm = LayerVectors(family_.mlp_norm);
    for (const VirtualShard& shard : shards_) {
      p.up.push_back(ColumnParallel(family_.up, up, shard));
      p.down.push_back(RowParallel(family_.down, config_.ffn_hidden_size(), shard));
    }
    p.down_bias = WholeBias(family_.down);
    return p;
  }

  WeightAndBias FinalNorm() {
    const TensorNames& names = family_.final_norm;
    return {Vector(names.weight, kAfterLayers, kInitOnes),
            HasBias(names) ? Vector(names.bias, kAfterLayers, kInitZeros) : nullptr};
  }

 private:
  bool HasBias(const TensorNames& names) const {
    return names.bias != nullptr && HasBiases(config_);
  }
  bool in_out() const { return family_.weight_layout == WeightLayout::kInOut; }
  std::string Name(const char* tensor) const { return family_.layer_name(layer_, tensor); }

  Parameter* Vector(std::string name, Place place, Initialization init) {  // [C]
    return &set_.Add(WholeParameter(std::move(name), {config_.hidden_size()}, place, init));
  }
  Parameter* WholeBias(const TensorNames& names) {
    return HasBias(names) ? Vector(Name(names.bias), InLayer(layer_), kInitZeros) : nullptr;
  }
  WeightAndBias LayerVectors(const TensorNames& names) {
    return {Vector(Name(names.weight), InLayer(layer_), kInitOnes), WholeBias(names)};
  }

  // A shard's columns of the matrices from C to each of `widths`, with their part of the biases. A
  // single tensor has them all as sections.
  WeightAndBias ColumnParallel(std::span<const TensorNames> names,
                               const std::vector<int64_t>& widths, const VirtualShard& shard) {
    const int64_t c = config_.hidden_size();
    const bool fused = names.size() == 1;
    std::vector<FusedTensor> weights, biases;
    for (size_t i = 0; i < names.size(); ++i) {
      const int64_t width = fused ? TotalWidth(widths) : widths[i];
      weights.push_back({Name(names[i].weight), in_out() ? Shape{c, width} : Shape{width, c}});
      if (HasBias(names[i])) biases.push_back({Name(names[i].bias), {width}});
    }
    Partition partition = {.dim = in_out() ? 1 : 0,
                           .sections = fused ? static_cast<int>(widths.size()) : 1,
                           .place = InLayer(layer_)};
    WeightAndBias p;
    p.weight = &set_.Add(ShardedParameter(weights, partition, shard, normal_));
    partition.dim = 0;
    if (!biases.empty()) p.bias = &set_.Add(ShardedParameter(biases, partition, shard, kInitZeros));
    return p;
  }

  // Adds a shard's rows of a matrix from `width` to C. Its bias is not sharded.
  Parameter* RowParallel(const TensorNames& names, int64_t width, const VirtualShard& shard) {
    const int64_t c = config_.hidden_size();
    const Partition partition = {.dim = in_out() ? 0 : 1, .place = InLayer(layer_)};
    return &set_.Add(ShardedParameter(Name(names.weight),
                                      in_out() ? Shape{width, c} : Shape{c, width}, partition,
                                      shard, residual_));
  }

  const DecoderFamily& family_;
  const ModelConfig& config_;
  const std::vector<VirtualShard> shards_;
  ParameterSet& set_;
  const Initialization normal_;
  const Initialization residual_;
  int64_t layer_ = 0;
};

// Builds layers from their parameters.
class DecoderAssembly {
 public:
  DecoderAssembly(const DecoderFamily& family, const ModelConfig& config,
                  const ModelOptions& options, const Device& device,
                  std::shared_ptr<const Rope> rope)
      : family_(family),
        config_(config),
        options_(options),
        device_(device),
        rope_(std::move(rope)) {}

  std::unique_ptr<Norm> MakeNorm(const WeightAndBias& p) const {
    if (family_.normalization == Normalization::kRmsNorm) {
      return std::make_unique<RmsNorm>(*p.weight, config_.norm_epsilon());
    }
    return std::make_unique<LayerNorm>(*p.weight, p.bias, config_.norm_epsilon(), device_);
  }

  TransformerBlock Layer(int64_t layer, const DecoderLayerParameters& p) const {
    const auto site = [&](double probability, const char* name) {
      return DropoutSite(probability, options_.seed, family_.layer_name(layer, name));
    };
    const auto linear = [&](Parameter* weight, Parameter* bias) {
      return Linear(*weight, bias, family_.weight_layout);
    };
    const double dropout = config_.hidden_dropout();
    AttentionShape shape = FirstShard();
    TransformerBlockParts parts;
    parts.attention_norm = MakeNorm(p.attention_norm);
    for (size_t shard = 0; shard < p.qkv.size(); ++shard) {
      const DropoutSite in_attention = site(config_.attention_dropout(), family_.attention_dropout);
      parts.attention.push_back({.qkv = linear(p.qkv[shard].weight, p.qkv[shard].bias),
                                 .attention = Attention(shape, in_attention, rope_),
                                 .projection = linear(p.projection[shard], nullptr)});
      shape.first_head += shape.heads;
      parts.mlp.push_back({.up = linear(p.up[shard].weight, p.up[shard].bias),
                           .down = linear(p.down[shard], nullptr)});
    }
    parts.attention_residual = {p.projection_bias, site(dropout, family_.projection_dropout)};
    parts.mlp_norm = MakeNorm(p.mlp_norm);
    parts.activation = family_.activation;
    parts.mlp_residual = {p.down_bias, site(dropout, family_.down_dropout)};
    return TransformerBlock(std::move(parts));
  }

 private:
  AttentionShape FirstShard() const {
    const TensorParallel& tensor_parallel = *options_.tensor_parallel;
    const int64_t heads = config_.num_attention_heads() / tensor_parallel.shards();
    return {.heads = heads,
            .key_value_heads = config_.num_query_groups() / tensor_parallel.shards(),
            .head_size = config_.hidden_size() / config_.num_attention_heads(),
            .first_head = tensor_parallel.first_shard() * heads};
  }

  const DecoderFamily& family_;
  const ModelConfig& config_;
  const ModelOptions& options_;
  const Device device_;
  const std::shared_ptr<const Rope> rope_;
};

}  // namespace

std::vector<std::string> NamesInTorchOrder(const DecoderFamily& family, const ModelConfig& config) {
  std::vector<std::string> names = {family.token_embedding};
  if (family.position_embedding != nullptr) names.emplace_back(family.position_embedding);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const auto add = [&](std::span<const TensorNames> tensors) {
      for (const TensorNames& tensor : tensors) {
        for (const char* const name : {tensor.weight, tensor.bias}) {
          if (name != nullptr) names.push_back(family.layer_name(layer, name));
        }
      }
    };
    const std::span<const TensorNames> attention_norm(&family.attention_norm, 1);
    const std::span<const TensorNames> mlp_norm(&family.mlp_norm, 1);
    if (!family.norms_come_last) add(attention_norm);
    add(family.qkv);
    add({&family.projection, 1});
    if (!family.norms_come_last) add(mlp_norm);
    add(family.up);
    add({&family.down, 1});
    if (!family.norms_come_last) continue;
    add(attention_norm);
    add(mlp_norm);
  }
  for (const char* const name : {family.final_norm.weight, family.final_norm.bias, family.head}) {
    if (name != nullptr) names.emplace_back(name);
  }
  return names;
}

DecoderParameters DeclareDecoder(const DecoderFamily& family, const ModelConfig& config,
                                 const ModelOptions& options, ParameterSet& set) {
  const ChunkLayers& stage = *options.stage;
  const TensorParallel& tensor_parallel = *options.tensor_parallel;
  const bool tied = !config.untie_embeddings_and_output_weights();
  const bool tied_here = tied && stage.has_embedding && stage.has_head;
  const Initialization normal = InitNormal(config.init_method_std());
  const TableDeclaration table = {.name = family.token_embedding,
                                  .vocab_size = config.vocab_size(),
                                  .padded_rows = PaddedVocabSize(config, tensor_parallel.shards()),
                                  .channels = config.hidden_size(),
                                  .place = tied ? kBothEnds : kBeforeLayers,
                                  .init = normal,
                                  .tied_name = tied ? family.head : "",
                                  .has_second_grad = tied_here && options.separate_tied_gradients};
  DecoderDeclaration declaration(family, config, options, set);
  DecoderParameters p;
  if (stage.has_embedding) {
    p.table = DeclareTable(table, tensor_parallel, set);
    if (tied_here && !table.has_second_grad) p.layout.shared_table_end = set.flat_elements();
    if (family.position_embedding != nullptr) {
      p.positions = &set.Add(WholeParameter(
          family.position_embedding, {config.max_position_embeddings(), config.hidden_size()},
          kBeforeLayers, normal));
    }
  }
  for (int64_t layer = stage.first; layer < stage.last; ++layer) {
    p.layout.boundaries.push_back(set.flat_elements());
    p.layers.push_back(declaration.Layer(layer));
  }
  p.layout.boundaries.push_back(set.flat_elements());
  if (!stage.has_head) return p;
  p.final_norm = declaration.FinalNorm();
  if (tied_here) {
    p.head = p.table;
    return p;
  }
  TableDeclaration head = table;
  if (!tied) {
    head.name = family.head;
    head.place = kAfterLayers;
  }
  p.head = DeclareTable(head, tensor_parallel, set);
  return p;
}

std::unique_ptr<Model> MakeDecoder(const DecoderFamily& family, const ModelConfig& config,
                                   const ModelOptions& options, Backend& backend) {
  const ChunkLayers& stage = *options.stage;
  DecoderParts parts;
  parts.parameters = std::make_unique<ParameterSet>();
  const DecoderParameters p = DeclareDecoder(family, config, options, *parts.parameters);
  parts.parameters->Allocate(options.compute_dtype, backend.device(), options.with_gradients);
  parts.names = NamesInTorchOrder(family, config);
  parts.hidden_size = config.hidden_size();
  parts.tensor_parallel = *options.tensor_parallel;
  parts.sums_by_unit = options.sums_by_unit;
  parts.layout = p.layout;
  if (family.rotary) parts.rope = MakeRope(config, config.use_rope_scaling());
  if (stage.has_embedding) {
    parts.embedding.emplace(
        p.table, p.positions,
        DropoutSite(config.hidden_dropout(), options.seed, family.embedding_dropout));
  }
  const DecoderAssembly assembly(family, config, options, backend.device(), parts.rope);
  for (size_t i = 0; i < p.layers.size(); ++i) {
    parts.blocks.push_back(assembly.Layer(stage.first + static_cast<int64_t>(i), p.layers[i]));
  }
  if (stage.has_head) {
    parts.head.emplace(assembly.MakeNorm(p.final_norm), p.head, config.vocab_size());
  }
  parts.matrix_weights = config.num_layers() * MatrixWeights(family, config) +
                         config.vocab_size() * config.hidden_size();
  parts.attention_columns = config.num_layers() * config.hidden_size();
  return std::make_unique<Decoder>(std::move(parts), backend);
}

std::shared_ptr<Rope> MakeRope(const ModelConfig& config, bool scaled) {
  const auto rounded = [](double value) { return static_cast<float>(value); };
  RopeScaling scaling;
  scaling.enabled = scaled;
  scaling.factor = rounded(config.rope_scaling_factor());
  scaling.low_frequency_factor = rounded(config.rope_scaling_low_freq_factor());
  scaling.high_frequency_factor = rounded(config.rope_scaling_high_freq_factor());
  scaling.original_max_positions =
      static_cast<double>(config.rope_scaling_original_max_position_embeddings());
  return std::make_shared<Rope>(config.hidden_size() / config.num_attention_heads(),
                                rounded(config.rotary_base()), scaling);
}

}  // namespace tessera
