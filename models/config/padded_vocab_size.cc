#include "models/config/padded_vocab_size.h"

#include <numeric>

namespace tessera {

int64_t PaddedVocabSize(const ModelConfig& config, int64_t shards) {
  const int64_t multiple = std::lcm(config.make_vocab_size_divisible_by(), shards);
  return (config.vocab_size() + multiple - 1) / multiple * multiple;
}

}  // namespace tessera
