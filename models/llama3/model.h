#ifndef TESSERA_MODELS_LLAMA3_MODEL_H_
#define TESSERA_MODELS_LLAMA3_MODEL_H_

#include <memory>

#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "models/layers/model_options.h"

namespace tessera::llama3 {

// Llama-3.1 (Grattafiori et al., 2024) as Hugging Face's LlamaForCausalLM computes it. Parameters
// are allocated, not initialised. Preconditions: config resolved, stage set and in
// range.
std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_MODEL_H_
