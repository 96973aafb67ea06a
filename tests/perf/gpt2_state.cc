#include "tests/perf/gpt2_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLayers = 12, kChannels = 768, kVocabulary = 50257, kPositions = 1024;

struct Parameter {
  std::string name;
  ckpt::Shape shape;
};

std::vector<Parameter> Gpt2Parameters() {
  const int64_t C = kChannels;
  std::vector<Parameter> parameters = {{"wte.weight", {kVocabulary, C}},
                                       {"wpe.weight", {kPositions, C}}};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string h = absl::StrCat("h.", layer, ".");
    for (const Parameter& p : std::vector<Parameter>{{"ln_1.weight", {C}},
                                                     {"ln_1.bias", {C}},
                                                     {"attn.c_attn.weight", {3 * C, C}},
                                                     {"attn.c_attn.bias", {3 * C}},
                                                     {"attn.c_proj.weight", {C, C}},
                                                     {"attn.c_proj.bias", {C}},
                                                     {"ln_2.weight", {C}},
                                                     {"ln_2.bias", {C}},
                                                     {"mlp.c_fc.weight", {4 * C, C}},
                                                     {"mlp.c_fc.bias", {4 * C}},
                                                     {"mlp.c_proj.weight", {C, 4 * C}},
                                                     {"mlp.c_proj.bias", {C}}}) {
      parameters.push_back({h + p.name, p.shape});
    }
  }
  parameters.push_back({"ln_f.weight", {C}});
  parameters.push_back({"ln_f.bias", {C}});
  return parameters;
}

}  // namespace

Gpt2State::Gpt2State() {
  for (const Parameter& p : Gpt2Parameters()) {
    Add(p.name, ckpt::TensorRole::kWeight, ckpt::ElementType::kBF16, 2, p.shape);
    Add("master." + p.name, ckpt::TensorRole::kMasterWeight, ckpt::ElementType::kF32, 4, p.shape);
    Add("exp_avg." + p.name, ckpt::TensorRole::kOptimizerState, ckpt::ElementType::kF32, 4,
        p.shape);
    Add("exp_avg_sq." + p.name, ckpt::TensorRole::kOptimizerState, ckpt::ElementType::kF32, 4,
        p.shape);
  }
}

void Gpt2State::Add(const std::string& name, ckpt::TensorRole role, ckpt::ElementType dtype,
                    int64_t element_bytes, const ckpt::Shape& shape) {
  const size_t bytes = ckpt::ElementCount(shape) * element_bytes;
  std::vector<uint64_t>& words = memory_.emplace_back((bytes + 7) / 8);
  for (uint64_t& word : words) {
    word = random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  }
  ckpt::ShardedTensor tensor;
  tensor.name = name;
  tensor.role = role;
  tensor.dtype = dtype;
  tensor.global_shape = shape;
  tensor.shards = {{ckpt::WholeBox(shape), words.data(), {}}};
  dict_.tensors.push_back(std::move(tensor));
  bytes_ += bytes;
}

}  // namespace tessera
