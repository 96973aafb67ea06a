#ifndef TESSERA_MODELS_GPT2_ARCHITECTURE_H_
#define TESSERA_MODELS_GPT2_ARCHITECTURE_H_

#include "models/layers/architecture.h"

namespace tessera::gpt2 {

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel computes it.
extern const Architecture kArchitecture;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_ARCHITECTURE_H_
