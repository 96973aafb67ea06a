#ifndef TESSERA_MODELS_LLAMA3_PADDLE_H_
#define TESSERA_MODELS_LLAMA3_PADDLE_H_

#include "models/foreign_files/format.h"

namespace tessera::llama3 {

// PaddleNLP's LlamaForCausalLM. Linear weights are [in, out]; the rows of q and k are in the same
// order as here. Queries, keys and values, and gate and up, are matrices of their own or fused.
// Layers of a pipeline are numbered from the embedding on, which is layer 0.
extern const ForeignFormat kPaddleFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_PADDLE_H_
