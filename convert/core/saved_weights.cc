#include "convert/core/saved_weights.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"

namespace tessera::ckpt::convert {
namespace {

using NewNames = absl::flat_hash_map<std::string, std::string>;

// Returns the mapping's names of tensors of optimizer state, by their names in the checkpoint.
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

// Renames tensors whose names are given to others, so that names stay unique.
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

// Returns the wanted dtype or, if it is unspecified, the dtype of all weights.
absl::StatusOr<DType> WeightDType(const std::vector<SavedWeight>& weights, DType wanted) {
  if (wanted != DType::kUnspecified) return wanted;
  std::set<DType> dtypes;
  for (const SavedWeight& weight : weights) dtypes.insert(weight.dtype);
  if (dtypes.size() == 1) return *dtypes.begin();
  return InvalidArgument("the weights have several dtypes: choose one with --dtype");
}

// Returns the dtype in which all parameters have this optimizer state; unspecified if none has it.
absl::StatusOr<DType> StateDType(const Manifest& manifest, const ModelDescription& model,
                                 const std::string& state) {
  std::map<std::string, DType> saved;
  for (const LogicalTensor& tensor : manifest.tensors())
    saved[tensor.name()] = FromProto(tensor.dtype());
  std::set<DType> dtypes;
  size_t found = 0;
  for (const LogicalParameter& parameter : model.parameters) {
    const auto at = saved.find(absl::StrCat(parameter.name, ".", state));
    if (at == saved.end()) continue;
    dtypes.insert(at->second);
    ++found;
  }
  if (found == 0) return DType::kUnspecified;
  if (found == model.parameters.size() && dtypes.size() == 1) return *dtypes.begin();
  return InvalidArgument("only ", found, " of ", model.parameters.size(), " parameters have ",
                         state,
                         ", or in several dtypes: --weights-only leaves optimizer state out");
}

}  // namespace

std::map<std::string, std::string> MastersWithoutWeights(const Manifest& manifest) {
  absl::flat_hash_set<std::string> saved;
  for (const LogicalTensor& tensor : manifest.tensors()) saved.insert(tensor.name());
  std::map<std::string, std::string> masters;
  for (const auto& [parameter, master] : MasterNames(manifest)) {
    if (saved.contains(View(parameter)) || !saved.contains(View(master))) continue;
    masters.emplace(parameter, master);
  }
  return masters;
}

absl::StatusOr<std::vector<SavedWeight>> FindWeights(const Manifest& manifest,
                                                     const ModelDescription& model) {
  std::map<std::string, const LogicalTensor*> saved;
  for (const LogicalTensor& tensor : manifest.tensors()) saved[tensor.name()] = &tensor;
  std::map<std::string, std::string> masters = MastersWithoutWeights(manifest);
  std::vector<std::string> problems;
  std::vector<SavedWeight> weights;
  for (const LogicalParameter& parameter : model.parameters) {
    auto found = saved.find(parameter.name);
    if (found == saved.end()) found = saved.find(masters[parameter.name]);
    if (found == saved.end()) {
      problems.push_back(absl::StrCat("parameter ", parameter.name, " is missing"));
      continue;
    }
    if (GlobalShape(*found->second) != parameter.shape) {
      problems.push_back(absl::StrCat("tensor ", parameter.name, " has shape ",
                                      ShapeToString(GlobalShape(*found->second)), ", expected ",
                                      ShapeToString(parameter.shape)));
    }
    weights.push_back({&parameter, FromProto(found->second->dtype())});
    saved.erase(parameter.name);
    saved.erase(parameter.tied_name);
  }
  for (const auto& [name, tensor] : saved) {
    if (FromProto(tensor->role()) == TensorRole::kWeight) {
      problems.push_back(absl::StrCat("tensor ", name, " is not the model's"));
    }
  }
  if (problems.empty()) return weights;
  return FailedPrecondition(JoinFirst(problems, "; "));
}

bool IsFloating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

// A trainer that skips steps has a count of its own for updates.
double UpdatesOf(const Manifest& manifest) {
  const auto updates = manifest.trainer().extra().find("optimizer_updates");
  int64_t count = 0;
  const bool is_known =
      updates != manifest.trainer().extra().end() && absl::SimpleAtoi(updates->second, &count);
  return static_cast<double>(is_known ? count : manifest.trainer().step());
}

double OptionOf(const Manifest& manifest, size_t group, const std::string& name, double absent) {
  if (group >= static_cast<size_t>(manifest.optimizer().groups_size())) return absent;
  const auto& options = manifest.optimizer().groups(static_cast<int>(group)).options();
  const auto saved = options.find(name);
  return saved == options.end() ? absent : saved->second;
}

absl::StatusOr<std::vector<SavedKind>> FindKinds(const Manifest& manifest,
                                                 const ModelDescription& model,
                                                 const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedWeight> weights, FindWeights(manifest, model));
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, WeightDType(weights, options.dtype));
  std::vector<SavedKind> kinds = {{kForeignWeight, dtype}};
  if (options.weights_only) return kinds;
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq, kForeignMaster}) {
    TESSERA_ASSIGN_OR_RETURN(const DType state, StateDType(manifest, model, kind.state));
    if (state != DType::kUnspecified) kinds.push_back({kind, state});
  }
  return kinds;
}

bool HasKind(const std::vector<SavedKind>& kinds, const ForeignKind& kind) {
  return std::ranges::any_of(
      kinds, [&](const SavedKind& saved) { return saved.kind.state == kind.state; });
}

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
  return CheckpointOfManifest(checkpoint.storage(), checkpoint.directory(), std::move(manifest));
}

}  // namespace tessera::ckpt::convert
