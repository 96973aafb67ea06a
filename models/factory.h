#ifndef TESSERA_MODELS_FACTORY_H_
#define TESSERA_MODELS_FACTORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "models/layers/model_options.h"

namespace tessera {

// Builds the model that `config` (resolved or not) describes and allocates its parameters, which
// are zero until ParameterSet::Initialize, an import or a checkpoint fills them. `backend` must
// outlive the model. InvalidArgument for a wrong config, dtype or layer range, and for a model that
// is not divisible by the number of shards.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config,
                                                 const ModelOptions& options, Backend& backend);

}  // namespace tessera

#endif  // TESSERA_MODELS_FACTORY_H_
