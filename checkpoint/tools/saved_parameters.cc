#include "checkpoint/tools/saved_parameters.h"

#include <cstddef>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

Shape PaddedShape(const LogicalTensor& tensor) {
  return {tensor.padded_shape().begin(), tensor.padded_shape().end()};
}

class Collector {
 public:
  explicit Collector(const Manifest& manifest) : manifest_(manifest) {
    std::map<std::string, std::string> alias;
    for (const LogicalTensor& tensor : manifest.tensors()) {
      if (!tensor.alias_of().empty()) alias[tensor.name()] = tensor.alias_of();
    }
    for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
      const auto at = alias.find(parameter.parameter());
      const std::string& name = at == alias.end() ? parameter.parameter() : at->second;
      for (const auto& [state, tensor] : parameter.states()) owner_[tensor] = name;
    }
  }

  std::vector<SavedParameter> Collect() && {
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (tensor.alias_of().empty()) Add(tensor);
    }
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (!tensor.alias_of().empty()) At(tensor.alias_of()).aliases.push_back(&tensor);
    }
    for (SavedParameter& parameter : parameters_) Finish(parameter);
    return std::move(parameters_);
  }

 private:
  // The parameter that a tensor belongs to, or is.
  SavedParameter& At(const std::string& tensor) {
    const auto owner = owner_.find(tensor);
    const std::string& name = owner == owner_.end() ? tensor : owner->second;
    const auto [at, is_new] = index_.try_emplace(name, parameters_.size());
    if (is_new) parameters_.push_back({.name = name});
    return parameters_[at->second];
  }

  void Add(const LogicalTensor& tensor) {
    SavedParameter& parameter = At(tensor.name());
    if (parameter.name == tensor.name()) {
      parameter.weight = &tensor;
    } else {
      parameter.states.push_back(&tensor);
    }
  }

  static void Finish(SavedParameter& parameter) {
    const LogicalTensor& first =
        parameter.weight != nullptr ? *parameter.weight : *parameter.states[0];
    parameter.shape = GlobalShape(first);
    parameter.padded_shape = PaddedShape(first);
    std::vector<const LogicalTensor*> states;
    for (const LogicalTensor* state : parameter.states) {
      (GlobalShape(*state) == parameter.shape ? states : parameter.shapeless).push_back(state);
    }
    parameter.states = std::move(states);
  }

  const Manifest& manifest_;
  std::map<std::string, std::string> owner_;  // state tensor -> parameter
  std::map<std::string, size_t> index_;
  std::vector<SavedParameter> parameters_;
};

}  // namespace

absl::StatusOr<std::vector<SavedParameter>> CollectParameters(
    const Manifest& manifest, const std::vector<SplitOverride>& overrides) {
  std::vector<SavedParameter> parameters = Collector(manifest).Collect();
  for (SavedParameter& parameter : parameters) {
    TESSERA_ASSIGN_OR_RETURN(parameter.sharding,
                             FindSharding(parameter.name, parameter.shape, overrides));
    if (parameter.sharding.place != Sharding::Place::kFirstStage) continue;
    for (const LogicalTensor* alias : parameter.aliases) {
      TESSERA_ASSIGN_OR_RETURN(const Sharding second,
                               FindSharding(alias->name(), parameter.shape, {}));
      parameter.on_both_ends |= second.place == Sharding::Place::kLastStage;
    }
  }
  return parameters;
}

}  // namespace tessera::ckpt
