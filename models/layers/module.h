#ifndef TESSERA_MODELS_LAYERS_MODULE_H_
#define TESSERA_MODELS_LAYERS_MODULE_H_

#include <string>
#include <string_view>
#include <vector>

#include "models/layers/parameter.h"

namespace tessera {

// A logical tensor of a model, as this rank has it.
struct NamedParameter {
  // A piece of the tensor, and the buffer that has it, perhaps beside other tensors.
  struct Part {
    Parameter* parameter;
    const ParameterPiece* piece;
  };

  std::string name;
  std::vector<Part> parts;  // of the virtual shards of this rank
};

// A model, or a part of one, as a module of torch: a node of the tree that the dots in the names of
// tensors make, such as "transformer.h.0.attn". Refers to the parameters of a Model, which must
// outlive it.
class Module {
 public:
  // Makes the root: the whole model, or what a rank has of it. `names`: all logical tensors, in the
  // order in which torch's module registers them.
  Module(const ParameterSet& parameters, const std::vector<std::string>& names);

  // Returns the parameters under the names and in the order of torch's
  // nn.Module.named_parameters(). Names are relative to this module, and follow `prefix` and a dot
  // unless it is empty. Tied parameters are listed once, under the first name. Without `recurse`,
  // only those of this module itself, and not of the modules in it.
  std::vector<NamedParameter> NamedParameters(std::string_view prefix = "",
                                              bool recurse = true) const;

  // Returns the module `name` in this one, "h.0.attn" for example; "" is this one. A module without
  // parameters, or one that does not exist, is empty.
  Module Submodule(std::string_view name) const;

 private:
  Module() = default;

  std::vector<NamedParameter> parameters_;  // with relative names
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_MODULE_H_
