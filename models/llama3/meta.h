#ifndef TESSERA_MODELS_LLAMA3_META_H_
#define TESSERA_MODELS_LLAMA3_META_H_

#include "models/foreign_files/format.h"

namespace tessera::llama3 {

// The names of Meta's own files and of torchtitan's, and params.json. Rows of queries and keys
// alternate between the halves of a head that the rotary embedding pairs.
extern const ForeignFormat kMetaFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_META_H_
