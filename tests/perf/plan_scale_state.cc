#include "tests/perf/plan_scale_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "layout/box.h"

namespace tessera::ckpt {
namespace {

enum class Split { kNone, kRows, kColumns };

struct Parameter {
  std::string name;
  Shape shape;
  Split split;  // over the tensor axis
};

void AppendLayer(const LlamaShape& m, int layer, std::vector<Parameter>& out) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  out.push_back({prefix + "input_layernorm.weight", {m.hidden}, Split::kNone});
  out.push_back({prefix + "self_attn.q_proj.weight", {m.hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.k_proj.weight", {m.kv_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.v_proj.weight", {m.kv_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "self_attn.o_proj.weight", {m.hidden, m.hidden}, Split::kColumns});
  out.push_back({prefix + "post_attention_layernorm.weight", {m.hidden}, Split::kNone});
  out.push_back({prefix + "mlp.gate_proj.weight", {m.ffn_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "mlp.up_proj.weight", {m.ffn_hidden, m.hidden}, Split::kRows});
  out.push_back({prefix + "mlp.down_proj.weight", {m.hidden, m.ffn_hidden}, Split::kColumns});
}

std::vector<Parameter> StageParameters(const LlamaShape& m, const Grid& grid, int stage) {
  std::vector<Parameter> parameters;
  if (stage == 0) {
    parameters.push_back({"model.embed_tokens.weight", {m.vocab, m.hidden}, Split::kRows});
  }
  const int first = m.layers * stage / grid.pipeline;
  const int last = m.layers * (stage + 1) / grid.pipeline;
  for (int layer = first; layer < last; ++layer) AppendLayer(m, layer, parameters);
  if (stage == grid.pipeline - 1) {
    parameters.push_back({"model.norm.weight", {m.hidden}, Split::kNone});
    parameters.push_back({"lm_head.weight", {m.vocab, m.hidden}, Split::kRows});
  }
  return parameters;
}

Box LocalBox(const Parameter& parameter, const Grid& grid, int tensor_rank) {
  Box box = WholeBox(parameter.shape);
  if (parameter.split == Split::kNone) return box;
  const size_t dim = parameter.split == Split::kRows ? 0 : 1;
  box.shape[dim] /= grid.tensor;
  box.global_offset[dim] = tensor_rank * box.shape[dim];
  return box;
}

ShardedTensor Tensor(std::string name, TensorRole role, DType dtype, const Shape& shape,
                     const std::vector<Box>& boxes) {
  static char memory;  // stands in for memory that is never touched
  ShardedTensor tensor;
  tensor.name = std::move(name);
  tensor.role = role;
  tensor.dtype = dtype;
  tensor.global_shape = shape;
  for (const Box& box : boxes) tensor.shards.push_back({box, &memory, {}});
  return tensor;
}

}  // namespace

StateDict LlamaState(const LlamaShape& model, const Grid& grid, int rank) {
  const int tensor_rank = rank % grid.tensor;
  const int data_rank = rank / grid.tensor % grid.data;
  const std::vector<Parameter> parameters =
      StageParameters(model, grid, rank / grid.tensor / grid.data);
  StateDict state;
  int64_t elements = 0;
  for (const Parameter& p : parameters) {
    const Box local = LocalBox(p, grid, tensor_rank);
    elements += ElementCount(local.shape);
    state.tensors.push_back(Tensor(p.name, TensorRole::kWeight, DType::kBF16, p.shape, {local}));
  }
  const int64_t begin = elements * data_rank / grid.data;
  const int64_t end = elements * (data_rank + 1) / grid.data;
  int64_t at = 0;
  for (const Parameter& p : parameters) {
    const Box local = LocalBox(p, grid, tensor_rank);
    const int64_t size = ElementCount(local.shape);
    const int64_t first = std::clamp<int64_t>(begin - at, 0, size);
    const int64_t last = std::clamp<int64_t>(end - at, 0, size);
    at += size;
    if (first == last) continue;
    const std::vector<Box> boxes = FlatRangeToBoxes(local, first, last);
    state.tensors.push_back(
        Tensor(p.name + ".master", TensorRole::kMasterWeight, DType::kF32, p.shape, boxes));
    state.tensors.push_back(
        Tensor(p.name + ".exp_avg", TensorRole::kOptimizerState, DType::kF32, p.shape, boxes));
    state.tensors.push_back(
        Tensor(p.name + ".exp_avg_sq", TensorRole::kOptimizerState, DType::kF32, p.shape, boxes));
  }
  return state;
}

}  // namespace tessera::ckpt
