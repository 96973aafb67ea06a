#ifndef TESSERA_MODELS_LAYERS_DECLARE_H_
#define TESSERA_MODELS_LAYERS_DECLARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "compute/parallel/tensor_parallel.h"
#include "layout/partition.h"
#include "models/layers/parameter.h"

namespace tessera {

inline constexpr Initialization kInitZeros = {Initialization::kZeros, 0};
inline constexpr Initialization kInitOnes = {Initialization::kOnes, 0};
inline Initialization InitNormal(double deviation) { return {Initialization::kNormal, deviation}; }

// The index of a virtual shard, and the number of shards.
struct VirtualShard {
  int index = 0;
  int count = 1;
};

// Returns the virtual shards of this rank.
std::vector<VirtualShard> LocalShards(const TensorParallel& tensor_parallel);

// Returns a parameter that is a logical tensor which every tensor-parallel rank has whole. Vectors
// do not decay.
Parameter WholeParameter(std::string name, const Shape& shape, Place place, Initialization init);

// A logical tensor in a fused buffer.
struct FusedTensor {
  std::string name;
  Shape global_shape;
};

// Returns a parameter of one virtual shard of each section of each tensor, next to each other along
// the dim that `partition` cuts. These are, for example, the shard's parts of q, of k and of v,
// whether they are three tensors or three sections of one. Precondition: the sections divide that
// dim, and the shards every section.
Parameter ShardedParameter(const std::vector<FusedTensor>& tensors, const Partition& partition,
                           const VirtualShard& shard, Initialization init);
// Returns a parameter of one virtual shard of one tensor.
Parameter ShardedParameter(std::string name, Shape global_shape, const Partition& partition,
                           const VirtualShard& shard, Initialization init);

// Returns a parameter of one virtual shard of the rows of a table [rows,C] that is padded to
// `padded_rows`, a multiple of the number of shards. The last shards may have few rows that are not
// padding, or none.
Parameter TableParameter(std::string name, Shape global_shape, int64_t padded_rows, Place place,
                         const VirtualShard& shard, Initialization init);

// The positions of a decoder's parameters in the flat space, which is in the order of the forward
// pass: embedding, blocks, head.
struct DecoderLayout {
  std::vector<int64_t> boundaries;  // begin of each block, and, last, of the head
  // If embedding and head of one stage accumulate into one gradient: the end of the table, which
  // comes first; otherwise 0.
  int64_t shared_table_end = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECLARE_H_
