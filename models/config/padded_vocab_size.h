#ifndef TESSERA_MODELS_CONFIG_PADDED_VOCAB_SIZE_H_
#define TESSERA_MODELS_CONFIG_PADDED_VOCAB_SIZE_H_

#include <cstdint>

#include "models/config/config.pb.h"

namespace tessera {

// Rows of the token embedding in memory, over all ranks: a multiple of make_vocab_size_divisible_by
// and of the number of virtual tensor shards. Precondition: a resolved config.
int64_t PaddedVocabSize(const ModelConfig& config, int64_t shards = 1);

}  // namespace tessera

#endif  // TESSERA_MODELS_CONFIG_PADDED_VOCAB_SIZE_H_
