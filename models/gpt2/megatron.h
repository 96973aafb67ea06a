#ifndef TESSERA_MODELS_GPT2_MEGATRON_H_
#define TESSERA_MODELS_GPT2_MEGATRON_H_

#include "models/foreign_files/format.h"

namespace tessera::gpt2 {

// Linear weights are [out, in] there. The fused matrix of queries, keys and values has them head by
// head.
extern const ForeignFormat kMegatronFormat;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_MEGATRON_H_
