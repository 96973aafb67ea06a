#ifndef TESSERA_MODELS_MODEL_CONFIG_H_
#define TESSERA_MODELS_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/partition.h"
#include "models/config/config.pb.h"
#include "tensor/tensor.h"

namespace tessera {

// Returns every named size, GPT-2 first, in rising order of each architecture.
std::vector<std::string> ModelSizeNames();

// Returns the resolved config: sets the unset fields of `config` from its named size, then from the
// architecture's defaults, and validates the result. A resolved config has every field that its
// architecture uses, and no others. Idempotent. InvalidArgument: one sentence that names the field
// and its value.
absl::StatusOr<ModelConfig> ResolveModelConfig(const ModelConfig& config);

// Returns the name in manifests: "gpt2", or the name under which an architecture is registered.
std::string ArchitectureName(const ModelConfig& config);

// A field of two configs with different values, "unset" for one without the field.
struct FieldDifference {
  std::string name, found, wanted;
};

// Returns "norm_epsilon is 1e-05, not 1e-06".
std::string Describe(const FieldDifference& field);

// Returns the fields by which `wanted` is another model than `found`, in the order of the
// definition. Dropout, which only training has, does not count. Reals are compared as fp32, in
// which files have them.
std::vector<FieldDifference> ModelDifferences(const ModelConfig& found, const ModelConfig& wanted);

// Returns those of them by which equal weights compute another function: a tied head and a head of
// its own are trained differently, but compute the same.
std::vector<FieldDifference> FunctionDifferences(const ModelConfig& found,
                                                 const ModelConfig& wanted);

// Returns the number of weights of the unsharded model, padding excluded, tied parameters once.
// Precondition (here and below): a resolved config.
int64_t ParameterCount(const ModelConfig& config);

// Returns the time that a model's head takes, in units of layers: by the weights in matrix
// products, rounded.
int64_t HeadInLayers(const ModelConfig& config);

// A trainable logical tensor of a model, whatever its sharding.
struct LogicalParameter {
  std::string name;
  Shape shape;  // unpadded
  Partition partition;
  bool weight_decay = true;
  std::string tied_name;  // a second name of the same tensor, or empty
};

// Returns all logical parameters of a model, in its order. Allocates nothing in proportion to their
// sizes. Precondition: a resolved config.
std::vector<LogicalParameter> LogicalParameters(const ModelConfig& config);

}  // namespace tessera

#endif  // TESSERA_MODELS_MODEL_CONFIG_H_
