#ifndef TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
#define TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/layers/architecture.h"

namespace tessera::llama3 {

// Llama-3.1 (Grattafiori et al., 2024) as Hugging Face's LlamaForCausalLM computes it.
extern const Architecture kArchitecture;

// Sets unset fields to Llama-3.1's defaults.
void FillDefaults(ModelConfig& config);
// Checks a config. InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

// Returns the width of the MLP by Llama's rule: 2/3 of 4 * hidden_size, truncated, times the
// multiplier, truncated, rounded up to a multiple of multiple_of.
int64_t FfnHiddenSize(int64_t hidden_size, double multiplier, int64_t multiple_of);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
