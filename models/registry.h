#ifndef TESSERA_MODELS_REGISTRY_H_
#define TESSERA_MODELS_REGISTRY_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/architecture.h"
#include "models/layers/model.h"

namespace tessera {

// Adds an architecture to those that come with Tessera, GPT-2 and Llama-3. Configs name it
// `architecture: OTHER other_architecture: "<name>"`; nothing else has to know it. Call once for
// each architecture, before other threads use a config; `architecture` must stay valid. CHECKs that
// its name is new and its functions are given.
void RegisterArchitecture(const Architecture& architecture);

// Returns all architectures in the order of registration, those of Tessera first.
std::vector<const Architecture*> Architectures();

// Returns the architecture of a config; null if it names none, or one that is not registered.
const Architecture* FindArchitecture(const ModelConfig& config);

// Builds the model that `config` (resolved or not) describes and allocates its parameters, which
// are zero until ParameterSet::Initialize, an import or a checkpoint fills them. `backend` must
// outlive the model. InvalidArgument for a wrong config, dtype or layer range, and for a model that
// is not divisible by the number of shards.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config,
                                                 const ModelOptions& options, Backend& backend);

}  // namespace tessera

#endif  // TESSERA_MODELS_REGISTRY_H_
