#ifndef TESSERA_MODELS_LLAMA3_MEGATRON_H_
#define TESSERA_MODELS_LLAMA3_MEGATRON_H_

#include "models/foreign_files/format.h"

namespace tessera::llama3 {

// The fused matrix of queries, keys and values has them by query group; gate and up are the halves
// of one matrix, each of which tensor parallelism cuts.
extern const ForeignFormat kMegatronFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_MEGATRON_H_
