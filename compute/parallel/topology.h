#ifndef TESSERA_COMPUTE_PARALLEL_TOPOLOGY_H_
#define TESSERA_COMPUTE_PARALLEL_TOPOLOGY_H_

#include "layout/topology.h"

namespace tessera {

// A checkpoint's topology is the trainer's.
using ckpt::Axis;
using ckpt::ChunkLayers;
using ckpt::Coordinate;
using ckpt::LayersOfChunk;
using ckpt::ParseTopology;
using ckpt::Topology;
using ckpt::ValidateSizes;

// Number of virtual shards of a tensor-parallel layer: exact_tp_shards, or, in FAST numerics, where
// that is 0, the tensor-parallel size.
inline int VirtualShards(const Topology& topology, int exact_tp_shards) {
  return exact_tp_shards > 0 ? exact_tp_shards : topology.tensor;
}

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_TOPOLOGY_H_
