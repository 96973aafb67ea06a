#ifndef TESSERA_LAYOUT_TOPOLOGY_H_
#define TESSERA_LAYOUT_TOPOLOGY_H_

// The sizes of a run's parallel axes, as text and checked; the position of a rank on each axis; and
// the layers of a pipeline stage. Shared by trainers, the tools and the manifest.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

enum class Axis { kTensor, kData, kPipeline };

// The position of a rank on each axis.
struct Coordinate {
  int tensor = 0;
  int data = 0;
  int pipeline = 0;

  bool operator==(const Coordinate&) const = default;
};

// The sizes of the parallel axes. Ranks are numbered with the tensor axis fastest, then data, then
// pipeline, as in Megatron-LM: tensor-parallel ranks, which communicate most, are neighbours.
struct Topology {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  int virtual_pipeline = 1;  // chunks of layers of one pipeline rank
  int zero_stage = 0;        // 0, 1 or 2
  bool sequence_parallel = false;

  bool operator==(const Topology&) const = default;

  int world_size() const { return tensor * data * pipeline; }
  int stages() const { return pipeline * virtual_pipeline; }  // chunks of the whole pipeline
  int size(Axis axis) const;

  // Converts between ranks and coordinates. Preconditions: 0 <= rank < world_size(), or a
  // coordinate inside the sizes.
  Coordinate CoordinateOf(int rank) const;
  int RankOf(const Coordinate& coordinate) const;
  // Returns `rank` and the ranks that differ from it on this axis alone, in order of the axis.
  std::vector<int> GroupOf(int rank, Axis axis) const;
};

// Returns the number of virtual shards of a tensor-parallel layer: exact_tp_shards, or the
// tensor-parallel size in FAST numerics, where exact_tp_shards is 0.
inline int VirtualShards(const Topology& topology, int exact_tp_shards) {
  return exact_tp_shards > 0 ? exact_tp_shards : topology.tensor;
}

// Returns "dp4_zero2_tp2_pp2_vpp2_sp": sizes of 1 and what is off are left out; "single" if nothing
// is left.
std::string ToString(const Topology& topology);
// Parses the output of ToString(), with parts in any order. InvalidArgument, naming the part, if it
// is unknown or comes twice.
absl::StatusOr<Topology> ParseTopology(std::string_view text);

// Checks whether the sizes make sense by themselves. InvalidArgument: one sentence, which names the
// sizes as Megatron-LM's settings do ("tensor_model_parallel_size").
absl::Status ValidateSizes(const Topology& topology);

// The layers [first, last), by global index, of one chunk, and whether it includes the parts before
// the first and after the last layer of the model.
struct ChunkLayers {
  int64_t first = 0;
  int64_t last = 0;
  bool has_embedding = false;
  bool has_head = false;

  bool operator==(const ChunkLayers&) const = default;
};

// Returns the only chunk of a pipeline without stages.
constexpr ChunkLayers AllLayers(int64_t num_layers) { return {0, num_layers, true, true}; }

// Returns the layers of chunk `chunk` of pipeline rank `pipeline`, which is virtual stage chunk *
// pipeline size + rank. The head counts as `head_layers`: the last stage, which has it, gets that
// many layers fewer, but at least one. The other stages get equal numbers. Remaining layers go to
// the stages right before the last, so that the first ranks, which hold the most activations, get
// them last. Preconditions: the topology fits the model, and the chunk exists.
ChunkLayers LayersOfChunk(int64_t num_layers, int64_t head_layers, const Topology& topology,
                          int pipeline, int chunk);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_TOPOLOGY_H_
