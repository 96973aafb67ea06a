#ifndef TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
#define TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_

#include "models/layers/architecture.h"

namespace tessera::llama3 {

extern const Architecture kArchitecture;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_ARCHITECTURE_H_
