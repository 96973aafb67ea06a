#ifndef TESSERA_TRAINER_PARALLEL_TOPOLOGY_H_
#define TESSERA_TRAINER_PARALLEL_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

enum class Axis { kTensor, kData, kPipeline };

// Where a rank stands on each axis.
struct Coordinate {
  int tensor = 0;
  int data = 0;
  int pipeline = 0;

  bool operator==(const Coordinate&) const = default;
};

// The sizes of the parallel axes. Ranks are numbered with the tensor axis fastest, then data, then
// pipeline, as Megatron-LM does: tensor-parallel ranks, which talk most, are neighbours.
struct Topology {
  int tensor = 1;
  int data = 1;
  int pipeline = 1;
  int virtual_pipeline = 1;  // chunks of layers of one pipeline rank
  int zero_stage = 0;        // 0, 1 or 2
  bool sequence_parallel = false;

  bool operator==(const Topology&) const = default;

  int world_size() const { return tensor * data * pipeline; }
  int size(Axis axis) const;

  // Preconditions: 0 <= rank < world_size(), or a coordinate inside the sizes.
  Coordinate CoordinateOf(int rank) const;
  int RankOf(const Coordinate& coordinate) const;
  // The ranks that differ from `rank` on this axis alone, itself included, in order of the axis.
  std::vector<int> GroupOf(int rank, Axis axis) const;
};

// "dp4_zero2_tp2_pp2_vpp2_sp": what is 1 or off is left out; "single" when nothing is left.
std::string ToString(const Topology& topology);
// The inverse; parts in any order. InvalidArgument naming the part that is none, or comes twice.
absl::StatusOr<Topology> ParseTopology(std::string_view text);

// The layers [first, last), by global index, of one chunk, and whether it has what stands before
// the first and after the last layer of the model.
struct ChunkLayers {
  int64_t first = 0;
  int64_t last = 0;
  bool has_embedding = false;
  bool has_head = false;

  bool operator==(const ChunkLayers&) const = default;
};

// Chunk `chunk` of pipeline rank `pipeline` is virtual stage chunk * pipeline size + rank. The head
// counts as `head_layers`, so the last stage, which has it, gets as many layers fewer, but at least
// one; the others get as many as each other, and what is left over goes to those right before the
// last, so that the first ranks, who hold the most activations, get it last. Preconditions: the
// topology fits the model, and the chunk exists.
ChunkLayers LayersOfChunk(int64_t num_layers, int64_t head_layers, const Topology& topology,
                          int pipeline, int chunk);

// Parts that a tensor-parallel layer is computed in: exact_tp_shards, or in FAST numerics, where
// that is 0, the tensor-parallel size.
int VirtualShards(const Topology& topology, int exact_tp_shards);

// Whether the axes' sizes make sense by themselves. InvalidArgument: one sentence.
absl::Status ValidateSizes(const Topology& topology);

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_TOPOLOGY_H_
