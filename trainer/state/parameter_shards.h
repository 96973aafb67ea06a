#ifndef TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_
#define TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/layers/parameter.h"

namespace tessera {

// The boxes of one logical tensor that lie in a range of a parameter's local buffer.
struct LogicalShards {
  const ParameterPiece* piece = nullptr;
  std::vector<ckpt::Shard> shards;  // empty when the range misses the piece
};

// What elements [begin, end) of a parameter's flattened local buffer mean in logical tensors: one
// entry per piece, in the order of `parameter.pieces`. Padding belongs to no piece and is left out.
// `origin` is where element 0 of the local buffer lies, or would lie when only a later range of it
// is kept (a ZeRO owner's master weights and moments); `element_size_bytes` is that of the memory
// at `origin`.
std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_
