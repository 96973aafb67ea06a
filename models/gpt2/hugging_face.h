#ifndef TESSERA_MODELS_GPT2_HUGGING_FACE_H_
#define TESSERA_MODELS_GPT2_HUGGING_FACE_H_

#include "models/hugging_face_files/format.h"

namespace tessera::gpt2 {

// Linear weights are [in, out] there as here: transformers' Conv1D.
extern const HuggingFaceFormat kHuggingFaceFormat;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_HUGGING_FACE_H_
