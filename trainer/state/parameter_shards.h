#ifndef TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_
#define TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_

#include <cstdint>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "models/layers/parameter.h"

namespace tessera {

// The boxes of one logical tensor within a range of a parameter's local buffer.
struct LogicalShards {
  const ParameterPiece* piece = nullptr;
  std::vector<ckpt::Shard> shards;  // empty when the range misses the piece
};

// Converts elements [begin, end) of a parameter's flattened local buffer to boxes of logical
// tensors: one entry per piece, in the order of `parameter.pieces`. Padding belongs to no piece and
// is omitted. `origin` is the address of element 0 of the local buffer, or where it would be if
// only a later range of it is stored (a ZeRO owner's master weights and moments);
// `element_size_bytes` is the size of one element in the memory at `origin`.
std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_PARAMETER_SHARDS_H_
