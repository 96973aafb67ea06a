#ifndef TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
#define TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_

#include "models/layers/architecture.h"

namespace tessera::llama3 {

// Llama-3.1 (Grattafiori et al., 2024) as Hugging Face's LlamaForCausalLM computes it.
extern const Architecture kArchitecture;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
