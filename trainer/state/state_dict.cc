#include "trainer/state/state_dict.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "trainer/state/parameter_shards.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {
namespace {

ckpt::DType ToCheckpointDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ckpt::F32;
    case DType::kBF16:
      return ckpt::BF16;
    case DType::kF64:
      return ckpt::F64;
    case DType::kI32:
      return ckpt::I32;
  }
  LOG(FATAL) << "unknown dtype " << static_cast<int>(dtype);
}

// The logical shape with the padding that the buffer carries in memory; empty where there is none.
Shape PaddedShape(const Parameter& parameter, const ParameterPiece& piece) {
  if (parameter.pieces.size() != 1 || parameter.shape == piece.shape) return {};
  Shape padded = piece.global_shape;
  for (size_t dim = 0; dim < padded.size(); ++dim) {
    padded[dim] += parameter.shape[dim] - piece.shape[dim];
  }
  return padded;
}

// Collects shards by logical name, in order of first appearance.
class StateDictBuilder {
 public:
  // Adds elements [begin, begin + values.elements()) of a parameter; `suffix` is empty for the
  // weight itself.
  void Add(const Parameter& parameter, int64_t begin, const TensorView& values, ckpt::Role role,
           std::string_view suffix) {
    const int64_t element_size = ElementSize(values.dtype());
    void* origin = values.as<char>() - begin * element_size;
    const int64_t end = begin + (values.empty() ? 0 : values.elements());
    for (LogicalShards& logical : ShardsOfRange(parameter, begin, end, origin, element_size)) {
      ckpt::ShardedTensor& tensor =
          Find(suffix.empty() ? logical.piece->name : StateName(logical.piece->name, suffix));
      tensor.role = role;
      tensor.dtype = ToCheckpointDType(values.dtype());
      tensor.global_shape = logical.piece->global_shape;
      tensor.padded_shape = PaddedShape(parameter, *logical.piece);
      for (ckpt::LocalShard& shard : logical.shards) tensor.shards.push_back(std::move(shard));
    }
  }

  void AddAlias(const Parameter& parameter) {
    const ckpt::ShardedTensor original = Find(parameter.pieces[0].name);
    ckpt::ShardedTensor& alias = Find(parameter.tied_name);
    alias.role = original.role;
    alias.dtype = original.dtype;
    alias.global_shape = original.global_shape;
    alias.alias_of = original.name;
  }

  ckpt::StateDict Take() { return std::move(state_); }

 private:
  ckpt::ShardedTensor& Find(const std::string& name) {
    const auto [entry, is_new] = index_.emplace(name, state_.tensors.size());
    if (is_new) state_.tensors.push_back({.name = name});
    return state_.tensors[entry->second];
  }

  ckpt::StateDict state_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace

std::string StateName(std::string_view parameter, std::string_view state) {
  return std::string(parameter) + "." + std::string(state);
}

ckpt::StateDict WeightState(const ParameterSet& parameters) {
  StateDictBuilder builder;
  for (const Parameter* parameter : parameters.parameters()) {
    builder.Add(*parameter, 0, parameter->value, ckpt::WEIGHT, "");
    if (!parameter->tied_name.empty()) builder.AddAlias(*parameter);
  }
  return builder.Take();
}

ckpt::StateDict OptimizerTensors(const ParameterSet& parameters, const AdamW& optimizer) {
  StateDictBuilder builder;
  const std::vector<Parameter*>& all = parameters.parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    const AdamW::ParameterState state = optimizer.State(static_cast<int>(i));
    if (optimizer.has_master()) {
      builder.Add(*all[i], state.begin, state.master, ckpt::MASTER_WEIGHT, kMaster);
    }
    builder.Add(*all[i], state.begin, state.exp_avg, ckpt::OPTIMIZER_STATE, kExpAvg);
    builder.Add(*all[i], state.begin, state.exp_avg_sq, ckpt::OPTIMIZER_STATE, kExpAvgSq);
  }
  return builder.Take();
}

ckpt::OptimizerState OptimizerNames(const ParameterSet& parameters, const AdamW& optimizer,
                                    const OptimizerConfig& config) {
  ckpt::OptimizerState names;
  names.set_algorithm("adamw");
  for (const bool decays : {true, false}) {
    auto& options = *names.add_groups()->mutable_options();
    options["weight_decay"] = decays ? config.weight_decay() : 0;
    options["beta1"] = config.adam_beta1();
    options["beta2"] = config.adam_beta2();
    options["epsilon"] = config.adam_eps();
  }
  std::unordered_set<std::string> seen;
  for (const Parameter* parameter : parameters.parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) {
      if (!seen.insert(piece.name).second) continue;
      ckpt::OptimizerParameter& entry = *names.add_parameters();
      entry.set_parameter(piece.name);
      entry.set_group(parameter->weight_decay ? 0 : 1);
      auto& states = *entry.mutable_states();
      for (const std::string_view state : {kExpAvg, kExpAvgSq}) {
        states[std::string(state)] = StateName(piece.name, state);
      }
      if (optimizer.has_master()) states[std::string(kMaster)] = StateName(piece.name, kMaster);
    }
  }
  return names;
}

}  // namespace tessera
