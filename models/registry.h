#ifndef TESSERA_MODELS_REGISTRY_H_
#define TESSERA_MODELS_REGISTRY_H_

#include <vector>

#include "models/config/config.pb.h"
#include "models/layers/architecture.h"

namespace tessera {

// Adds an architecture to those that come with Tessera, GPT-2 and Llama-3: configs name it
// `architecture: OTHER other_architecture: "<name>"`, and nothing else has to know it. To be called
// before other threads use a config, once for each; `architecture` must stay valid. CHECKs that its
// name is new and its functions are given.
void RegisterArchitecture(const Architecture& architecture);

// In the order of registration, those of Tessera first.
std::vector<const Architecture*> Architectures();

// Null for a config that names none, or one that is not registered.
const Architecture* FindArchitecture(const ModelConfig& config);

}  // namespace tessera

#endif  // TESSERA_MODELS_REGISTRY_H_
