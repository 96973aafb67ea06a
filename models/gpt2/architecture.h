#ifndef TESSERA_MODELS_GPT2_ARCHITECTURE_H_
#define TESSERA_MODELS_GPT2_ARCHITECTURE_H_

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/layers/architecture.h"

namespace tessera::gpt2 {

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel computes it.
extern const Architecture kArchitecture;

// Sets unset fields to GPT-2's defaults.
void FillDefaults(ModelConfig& config);
// Checks a config. InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_ARCHITECTURE_H_
