#ifndef TESSERA_MODELS_LLAMA3_HUGGING_FACE_H_
#define TESSERA_MODELS_LLAMA3_HUGGING_FACE_H_

#include "models/hugging_face_files/format.h"

namespace tessera::llama3 {

// Linear weights are [out, in], and the rows of q and k are in the order of transformers' rotary
// embedding, there as here.
extern const HuggingFaceFormat kHuggingFaceFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_HUGGING_FACE_H_
