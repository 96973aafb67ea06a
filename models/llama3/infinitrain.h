#ifndef TESSERA_MODELS_LLAMA3_INFINITRAIN_H_
#define TESSERA_MODELS_LLAMA3_INFINITRAIN_H_

#include "models/foreign_files/format.h"

namespace tessera::llama3 {

// Modules of InfiniTrain's TransformerModel: fused queries, keys and values, with rotary rows in
// Meta's order.
extern const ForeignFormat kInfiniTrainFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_INFINITRAIN_H_
