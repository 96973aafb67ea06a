#include "convert/core/saved_weights.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt::convert {

absl::StatusOr<std::vector<SavedWeight>> FindWeights(const Manifest& manifest,
                                                     const ModelDescription& model) {
  std::map<std::string, const LogicalTensor*> saved;
  for (const LogicalTensor& tensor : manifest.tensors()) saved[tensor.name()] = &tensor;
  // The master weight of a parameter, where the optimizer's state names one.
  std::map<std::string, std::string> masters;
  for (const OptimizerParameter& entry : manifest.optimizer().parameters()) {
    const auto master = entry.states().find("master");
    if (master != entry.states().end()) masters[entry.parameter()] = master->second;
  }
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
  return absl::FailedPreconditionError(JoinFirst(problems, "; "));
}

bool IsFloating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

absl::StatusOr<DType> WeightDType(const std::vector<SavedWeight>& weights, DType wanted) {
  if (wanted != DType::kUnspecified) return wanted;
  std::set<DType> dtypes;
  for (const SavedWeight& weight : weights) dtypes.insert(weight.dtype);
  if (dtypes.size() == 1) return *dtypes.begin();
  return absl::InvalidArgumentError("the weights have several dtypes: --dtype chooses one");
}

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
  return absl::InvalidArgumentError(
      absl::StrCat("only ", found, " of ", model.parameters.size(), " parameters have ", state,
                   ", or in several dtypes: --weights-only leaves optimizer state out"));
}

}  // namespace tessera::ckpt::convert
