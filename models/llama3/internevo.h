#ifndef TESSERA_MODELS_LLAMA3_INTERNEVO_H_
#define TESSERA_MODELS_LLAMA3_INTERNEVO_H_

#include "models/foreign_files/format.h"

namespace tessera::llama3 {

// InternLM2 and Llama as InternEvo trains them: the configuration is the dict in model_config.pt.
// Where its releases differ, a parameter is there more than once under the same name, in other
// shapes or cut along another dim.
extern const ForeignFormat kInternEvoFormat;
// The same where `qk_interleaved` is true: a rotary embedding turns neighbouring rows of a head.
extern const ForeignFormat kInternEvoPairedFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_INTERNEVO_H_
