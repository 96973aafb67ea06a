#ifndef TESSERA_MODELS_LAYERS_DECLARE_H_
#define TESSERA_MODELS_LAYERS_DECLARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/parameter.h"
#include "trainer/parallel/tensor_parallel.h"

namespace tessera {

inline constexpr Initialization kInitZeros = {Initialization::kZeros, 0};
inline constexpr Initialization kInitOnes = {Initialization::kOnes, 0};
inline Initialization InitNormal(double deviation) { return {Initialization::kNormal, deviation}; }

// Which virtual shard of how many.
struct VirtualShard {
  int index = 0;
  int count = 1;
};

// Those of this rank.
std::vector<VirtualShard> LocalShards(const TensorParallel& tensor_parallel);

// A whole logical tensor. Vectors do not decay.
Parameter WholeParameter(std::string name, Shape shape, Initialization init);

// Rows or columns of a fused buffer: `extent` elements of one dim of a logical tensor, from `begin`
// on, all of its other dims.
struct Section {
  std::string name;
  Shape global_shape;
  int64_t begin = 0;
  int64_t extent = 0;
};

// One virtual shard of each section, next to each other along `dim`: its part of q, then of k, then
// of v. Precondition: the number of shards divides every extent.
Parameter ShardedParameter(const std::vector<Section>& sections, int dim, const VirtualShard& shard,
                           Initialization init);
// The same for one section that is a whole logical tensor.
Parameter ShardedParameter(std::string name, Shape global_shape, int dim, const VirtualShard& shard,
                           Initialization init);

// One virtual shard of the rows of a table [rows,C] that is padded to `padded_rows`, which the
// number of shards divides. The last shards may have few rows that are no padding, or none.
Parameter TableParameter(std::string name, Shape global_shape, int64_t padded_rows,
                         const VirtualShard& shard, Initialization init);

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECLARE_H_
