#ifndef TESSERA_MODELS_GPT2_MODEL_H_
#define TESSERA_MODELS_GPT2_MODEL_H_

#include <memory>

#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "models/layers/model_options.h"

namespace tessera::gpt2 {

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel computes it. Parameters are
// allocated, not initialised. Preconditions: config resolved, stage set and in range.
std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_MODEL_H_
