#ifndef TESSERA_MODELS_GPT2_INFINITRAIN_H_
#define TESSERA_MODELS_GPT2_INFINITRAIN_H_

#include "models/foreign_files/format.h"

namespace tessera::gpt2 {

// Modules of InfiniTrain's TransformerModel, which have the names of Hugging Face's, but matrices
// that are transposed.
extern const ForeignFormat kInfiniTrainFormat;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_INFINITRAIN_H_
