#include "convert/core/state_names.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt::convert {
namespace {

using NewNames = absl::flat_hash_map<std::string, std::string>;

// What the mapping calls tensors of optimizer state, by their names in the checkpoint.
NewNames NamesByMapping(const Manifest& manifest) {
  absl::flat_hash_set<std::string> states;
  NewNames first_names;  // of tensors with a second one
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (BelongsToOptimizer(FromProto(tensor.role()))) states.insert(tensor.name());
    if (!tensor.alias_of().empty()) first_names[tensor.name()] = tensor.alias_of();
  }
  NewNames names;
  absl::flat_hash_set<std::string> given;
  for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    const auto first = first_names.find(parameter.parameter());
    const std::string& owner = first == first_names.end() ? parameter.parameter() : first->second;
    for (const auto& [state, tensor] : parameter.states()) {
      // A tied parameter's state may have the name that the mapping gives the parameter.
      const std::string as_mapped = absl::StrCat(parameter.parameter(), ".", state);
      std::string name = tensor == as_mapped ? as_mapped : absl::StrCat(owner, ".", state);
      if (states.contains(tensor) && given.insert(name).second) names[tensor] = std::move(name);
    }
  }
  return names;
}

// Names stay unique: no tensor keeps one that another is given.
void AddDisplaced(const Manifest& manifest, NewNames& names) {
  absl::flat_hash_set<std::string> given;
  for (const auto& [tensor, name] : names) given.insert(name);
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!given.contains(tensor.name()) || names.contains(tensor.name())) continue;
    names[tensor.name()] = absl::StrCat(tensor.name(), " (of no parameter)");
  }
}

void Rename(const NewNames& names, std::string& name) {
  if (const auto at = names.find(name); at != names.end()) name = at->second;
}

}  // namespace

Checkpoint WithStatesNamedByMapping(const Checkpoint& checkpoint) {
  NewNames names = NamesByMapping(checkpoint.manifest());
  if (std::ranges::all_of(names, [](const auto& entry) { return entry.first == entry.second; })) {
    return checkpoint;
  }
  AddDisplaced(checkpoint.manifest(), names);
  Manifest manifest = checkpoint.manifest();
  for (LogicalTensor& tensor : *manifest.mutable_tensors()) {
    Rename(names, *tensor.mutable_name());
    if (!tensor.alias_of().empty()) Rename(names, *tensor.mutable_alias_of());
  }
  for (OptimizerParameter& parameter : *manifest.mutable_optimizer()->mutable_parameters()) {
    for (auto& [state, tensor] : *parameter.mutable_states()) Rename(names, tensor);
  }
  return Checkpoint(checkpoint.storage(), checkpoint.directory(), std::move(manifest));
}

}  // namespace tessera::ckpt::convert
