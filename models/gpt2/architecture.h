#ifndef TESSERA_MODELS_GPT2_ARCHITECTURE_H_
#define TESSERA_MODELS_GPT2_ARCHITECTURE_H_

#include "models/layers/architecture.h"

namespace tessera::gpt2 {

extern const Architecture kArchitecture;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_ARCHITECTURE_H_
