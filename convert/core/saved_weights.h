#ifndef TESSERA_CONVERT_CORE_SAVED_WEIGHTS_H_
#define TESSERA_CONVERT_CORE_SAVED_WEIGHTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/output_file.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// A parameter of a model, and its form in a checkpoint.
struct SavedWeight {
  const LogicalParameter* parameter;
  DType dtype;  // as saved, or of its master weight if only that is saved
};

// Returns the master weights that stand for weights that were not saved, by parameter.
std::map<std::string, std::string> MastersWithoutWeights(const Manifest& manifest);

// Finds the parameters, in the model's order, as weights in the manifest or, if these are missing,
// as master weights. FailedPrecondition, listing all parameters that are missing or have another
// shape, and weights that are not parameters.
absl::StatusOr<std::vector<SavedWeight>> FindWeights(const Manifest& manifest,
                                                     const ModelDescription& model);

// Returns whether elements are real numbers that loading converts to each other.
bool IsFloating(DType dtype);

// Returns how often the optimizer has updated the weights.
double UpdatesOf(const Manifest& manifest);

// Returns a setting of the optimizer's group of that number; `absent` if it is not saved.
double OptionOf(const Manifest& manifest, size_t group, const std::string& name, double absent);

// A kind of tensor that all parameters have, and its dtype.
struct SavedKind {
  ForeignKind kind;
  DType dtype = DType::kUnspecified;
};

// Returns the tensors that a format with AdamW's state writes for each parameter: first the weight,
// in the wanted dtype; then the existing moments and master weight, unless only weights are wanted.
// Errors: those of FindWeights(); InvalidArgument if the weights have several dtypes and none is
// wanted, and for a state that only some parameters have, or in several dtypes.
absl::StatusOr<std::vector<SavedKind>> FindKinds(const Manifest& manifest,
                                                 const ModelDescription& model,
                                                 const PlanOptions& options);

// Returns whether one of the kinds is this one.
bool HasKind(const std::vector<SavedKind>& kinds, const ForeignKind& kind);

// Returns the checkpoint with the name "<parameter>.<state>" (transformer.wte.weight.exp_avg) for
// each tensor of optimizer state that the manifest's mapping assigns to a parameter. Its name does
// not matter: two exchanged names are exchanged back. The mapping may give a parameter by its
// second name.
//
// Optimizer state that the mapping does not mention keeps its name, or becomes "<name> (of no
// parameter)" if the mapping gives the name to another tensor.
//
// If names change, the result uses the storage of `checkpoint`, which must outlive it.
Checkpoint WithStatesNamedByMapping(const Checkpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_SAVED_WEIGHTS_H_
