#include "convert/core/saved_weights.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/join_first.h"
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
  for (const ModelParameter& parameter : model.parameters) {
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
    weights.push_back({&parameter, found->second->dtype()});
    saved.erase(parameter.name);
    saved.erase(parameter.tied_name);
  }
  for (const auto& [name, tensor] : saved) {
    if (tensor->role() == WEIGHT) {
      problems.push_back(absl::StrCat("tensor ", name, " is not the model's"));
    }
  }
  if (problems.empty()) return weights;
  return absl::FailedPreconditionError(JoinFirst(problems, "; "));
}

}  // namespace tessera::ckpt::convert
