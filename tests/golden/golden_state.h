#ifndef TESSERA_TESTS_GOLDEN_GOLDEN_STATE_H_
#define TESSERA_TESTS_GOLDEN_GOLDEN_STATE_H_

// The state in golden checkpoints: small, computed, and never changed, since files of released
// format versions are compared with it. tests/interop/safetensors_check.py computes the same.

#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <string>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"

namespace tessera {

class GoldenState {
 public:
  // Makes the values as saved if `fill`, otherwise zeros to load into. `cuts` is the number of
  // boxes of each matrix, by rows.
  GoldenState(bool fill, int cuts) {
    using ckpt::TensorRole;
    const Partition table = {.dim = 0, .padded = true, .place = kBothEnds};
    const Partition columns = {.dim = 1, .sections = 3, .place = InLayer(0)};
    Add("wte.weight", TensorRole::kWeight, DType::kBF16, {7, 4}, fill, cuts, table);
    Add("h.0.mlp.weight", TensorRole::kWeight, DType::kF32, {5, 6}, fill, cuts, columns);
    Add("h.0.mlp.bias", TensorRole::kWeight, DType::kF32, {5}, fill, cuts,
        Partition{.place = InLayer(0)});
    Add("h.0.mask", TensorRole::kBuffer, DType::kU8, {3}, fill, 1);
    Add("steps", TensorRole::kBuffer, DType::kI64, {}, fill, 1);
    Add("exp_avg.h.0.mlp.weight", TensorRole::kOptimizerState, DType::kF32, {5, 6}, fill, cuts,
        columns);
    Add("master.wte.weight", TensorRole::kMasterWeight, DType::kF32, {7, 4}, fill, cuts, table);
    ckpt::ShardedTensor head;
    head.name = "lm_head.weight";
    head.role = ckpt::TensorRole::kWeight;
    head.dtype = DType::kBF16;
    head.global_shape = {7, 4};
    head.alias_of = "wte.weight";
    dict_.tensors.push_back(std::move(head));
  }
  GoldenState(const GoldenState&) = delete;
  GoldenState& operator=(const GoldenState&) = delete;

  ckpt::StateDict& dict() { return dict_; }
  const std::deque<std::string>& memory() const { return memory_; }

  // Returns the metadata of the current version; fields that older versions lack are unset in their
  // files.
  static ckpt::Manifest Metadata() {
    ckpt::Manifest metadata;
    metadata.mutable_producer()->set_program("golden");
    metadata.mutable_producer()->set_version("1");
    metadata.mutable_producer()->set_created_unix_ms(1700000000000);
    metadata.mutable_topology()->set_data_parallel(2);
    metadata.mutable_topology()->set_tensor_parallel(1);
    metadata.mutable_topology()->set_pipeline_parallel(1);
    metadata.mutable_topology()->set_sequence_parallel(true);
    ckpt::TrainerState& trainer = *metadata.mutable_trainer();
    trainer.set_step(7);
    trainer.mutable_data()->set_consumed_samples(224);
    trainer.mutable_rng()->set_seed(1234);
    trainer.set_best_loss(std::numeric_limits<double>::infinity());
    trainer.set_last_loss(2.5);
    trainer.mutable_data()->set_complete_fingerprint(5678);
    trainer.mutable_numerics()->set_instruction_set("avx2");
    trainer.mutable_numerics()->set_products_hash(91011);
    trainer.mutable_health()->set_state_is_finite(true);
    trainer.mutable_health()->set_loss_is_sane(true);
    trainer.mutable_health()->set_validation_loss(2.25);
    (*trainer.mutable_extra())["note"] = std::string("\0\1\2", 3);
    metadata.mutable_model()->set_architecture("gpt2");
    ckpt::OptimizerState& optimizer = *metadata.mutable_optimizer();
    optimizer.set_algorithm("adamw");
    (*optimizer.add_groups()->mutable_options())["beta1"] = 0.9;
    ckpt::OptimizerParameter& parameter = *optimizer.add_parameters();
    parameter.set_parameter("wte.weight");
    (*parameter.mutable_states())["master"] = "master.wte.weight";
    return metadata;
  }

 private:
  // Returns element i of tensor number t: a small number that every dtype here holds exactly.
  static double Value(size_t t, int64_t i) {
    return static_cast<double>((i * 3 + static_cast<int64_t>(t) * 5) % 31) * 0.5;
  }

  void Add(const std::string& name, ckpt::TensorRole role, DType dtype, const Shape& shape,
           bool fill, int cuts, std::optional<Partition> partition = std::nullopt) {
    const size_t t = dict_.tensors.size();
    const int64_t count = ElementCount(shape);
    std::string& bytes = memory_.emplace_back();
    for (int64_t i = 0; i < count; ++i) AppendValue(dtype, fill ? Value(t, i) : 0, bytes);
    ckpt::ShardedTensor tensor;
    tensor.name = name;
    tensor.role = role;
    tensor.dtype = dtype;
    tensor.global_shape = shape;
    tensor.partition = partition;
    const int64_t rows = shape.empty() ? 1 : shape[0];
    for (int c = 0; c < cuts; ++c) {
      const int64_t begin = rows * c / cuts, end = rows * (c + 1) / cuts;
      Box box = WholeBox(shape);
      if (!shape.empty()) {
        box.global_offset[0] = begin;
        box.shape[0] = end - begin;
      }
      tensor.shards.push_back({box, bytes.data() + bytes.size() / rows * begin, {}});
    }
    dict_.tensors.push_back(std::move(tensor));
  }

  template <typename T>
  static void AppendBytes(T value, std::string& bytes) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  static void AppendValue(DType dtype, double value, std::string& bytes) {
    const float single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    if (dtype == DType::kF32) AppendBytes(single, bytes);
    if (dtype == DType::kBF16) AppendBytes(static_cast<uint16_t>(bits >> 16), bytes);
    if (dtype == DType::kI64) AppendBytes(static_cast<int64_t>(value), bytes);
    if (dtype == DType::kU8) AppendBytes(static_cast<uint8_t>(value), bytes);
  }

  ckpt::StateDict dict_;
  std::deque<std::string> memory_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_GOLDEN_GOLDEN_STATE_H_
