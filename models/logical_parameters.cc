#include "models/logical_parameters.h"

#include "models/layers/architecture.h"
#include "models/layers/model_options.h"
#include "models/layers/parameter.h"
#include "models/registry.h"

namespace tessera {

std::vector<LogicalParameter> LogicalParameters(const ModelConfig& config) {
  ModelOptions whole;
  whole.stage.last_layer = config.num_layers();
  whole.tensor_parallel = &kNoTensorParallel;
  ParameterSet set;
  FindArchitecture(config)->declare_parameters(config, whole, set);
  std::vector<LogicalParameter> parameters;
  for (const Parameter* parameter : set.parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) {
      // Sections of one tensor are pieces of their own.
      const bool seen = !parameters.empty() && parameters.back().name == piece.name;
      if (seen) continue;
      parameters.push_back({.name = piece.name,
                            .shape = piece.global_shape,
                            .partition = piece.partition,
                            .weight_decay = parameter->weight_decay,
                            .tied_name = parameter->tied_name});
    }
  }
  return parameters;
}

}  // namespace tessera
