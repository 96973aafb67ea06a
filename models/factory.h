#ifndef TESSERA_MODELS_FACTORY_H_
#define TESSERA_MODELS_FACTORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "models/config.pb.h"
#include "models/layers/stage.h"
#include "models/model.h"
#include "trainer/kernels/backend.h"
#include "trainer/tensor/dtype.h"

namespace tessera {

struct ModelOptions {
  DType compute_dtype = DType::kF32;  // or kBF16; kF64 with the reference backend
  bool with_gradients = true;         // false: forward only (evaluation, sampling)
  uint64_t seed = 1234;  // of dropout; initial weights take theirs in ParameterSet::Initialize
  StageLayers stage;     // which layers; all of them by default
};

// Builds the model that `config` (resolved or not) describes and allocates its parameters, which
// are zero until ParameterSet::Initialize, an import or a checkpoint fills them. `backend` must
// outlive the model. InvalidArgument for a wrong config, dtype or layer range.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config,
                                                 const ModelOptions& options, Backend& backend);

}  // namespace tessera

#endif  // TESSERA_MODELS_FACTORY_H_
