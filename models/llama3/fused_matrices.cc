#include "models/llama3/fused_matrices.h"

#include <utility>

#include "models/llama3/names.h"

namespace tessera::llama3 {
namespace {

// Whole rows of a logical matrix, which are rows or columns of the parameter.
ForeignBlock Rows(std::string logical_name, int64_t row, int64_t rows, int64_t columns,
                  int64_t foreign_row, bool transposed) {
  return {.name = std::move(logical_name),
          .offset = {row, 0},
          .shape = {rows, columns},
          .foreign_offset = transposed ? Shape{0, foreign_row} : Shape{foreign_row, 0},
          .transposed = transposed};
}

}  // namespace

void AddHeads(const ModelConfig& config, RotaryRows order, const std::string& logical_name,
              int64_t row, int64_t heads, int64_t foreign_row, ForeignParameter& parameter) {
  const int64_t c = config.hidden_size(), d = c / config.num_attention_heads();
  if (order == RotaryRows::kHalves) {
    parameter.blocks.push_back(Rows(logical_name, row, heads * d, c, foreign_row, false));
    return;
  }
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      ForeignBlock block = Rows(logical_name, row + head * d + half * d / 2, d / 2, c,
                                foreign_row + head * d + half, false);
      block.foreign_step = {2, 1};
      parameter.blocks.push_back(std::move(block));
    }
  }
}

ForeignParameter PairedTensor(const ModelConfig& config, int64_t layer, std::string_view tensor,
                              std::string name) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  const int64_t heads = tensor == kQuery ? config.num_attention_heads() : config.num_query_groups();
  const int64_t rows = c / config.num_attention_heads() * heads;
  std::string logical_name = LayerName(layer, tensor);
  if (tensor == kQuery || tensor == kKey) {
    ForeignParameter parameter = {.name = std::move(name), .shape = {rows, c}};
    AddHeads(config, RotaryRows::kPairs, logical_name, 0, heads, 0, parameter);
    return parameter;
  }
  Shape shape = {f, c};  // of gate and up
  if (tensor == kNorm1 || tensor == kNorm2) shape = {c};
  if (tensor == kValue) shape = {rows, c};
  if (tensor == kOut) shape = {c, c};
  if (tensor == kDown) shape = {c, f};
  return SameTensor(std::move(name), std::move(logical_name), std::move(shape));
}

ForeignParameter FusedQkv(const ModelConfig& config, std::string name, int64_t layer,
                          RotaryRows order, bool transposed) {
  const int64_t c = config.hidden_size(), groups = config.num_query_groups();
  const int64_t d = c / config.num_attention_heads();
  const int64_t queries = config.num_attention_heads() / groups, group = (queries + 2) * d;
  ForeignParameter qkv = {.name = std::move(name),
                          .shape = transposed ? Shape{c, groups * group} : Shape{groups * group, c},
                          .tensor_parallel_dim = transposed ? 1 : 0};
  const auto add_heads = [&](const char* tensor, int64_t row, int64_t heads, int64_t foreign_row) {
    if (transposed) {
      qkv.blocks.push_back(Rows(LayerName(layer, tensor), row, heads * d, c, foreign_row, true));
    } else {
      AddHeads(config, order, LayerName(layer, tensor), row, heads, foreign_row, qkv);
    }
  };
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t key = g * group + queries * d;
    add_heads(kQuery, g * queries * d, queries, g * group);
    add_heads(kKey, g * d, 1, key);
    qkv.blocks.push_back(Rows(LayerName(layer, kValue), g * d, d, c, key + d, transposed));
  }
  return qkv;
}

ForeignParameter FusedGateUp(const ModelConfig& config, std::string name, int64_t layer,
                             bool transposed) {
  const int64_t c = config.hidden_size(), f = config.ffn_hidden_size();
  ForeignParameter fused = {.name = std::move(name),
                            .shape = transposed ? Shape{c, 2 * f} : Shape{2 * f, c},
                            .tensor_parallel_dim = transposed ? 1 : 0,
                            .sections = 2};
  fused.blocks = {Rows(LayerName(layer, kGate), 0, f, c, 0, transposed),
                  Rows(LayerName(layer, kUp), 0, f, c, f, transposed)};
  return fused;
}

}  // namespace tessera::llama3
