#ifndef TESSERA_TRAINER_PARALLEL_MESH_H_
#define TESSERA_TRAINER_PARALLEL_MESH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/comm/communicator.h"
#include "trainer/parallel/topology.h"

namespace tessera {

// Bytes that one operation has sent along one axis.
struct WireTraffic {
  std::string_view group;  // "tp", "dp", "pp", "tied" or "world"
  CommOp op = CommOp::kBarrier;
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // as CommCounter counts them, by this rank
};

// A topology, this rank's coordinate in it, and its communicators.
//
// Threads: as Communicator.
class Mesh {
 public:
  // `world` may be null if the topology has one rank; otherwise its size must be the topology's
  // (the error names both and the axes' sizes). Whether a model fits the topology is checked by
  // ValidateTopology. Every rank of `world`, which must outlive the mesh, calls it with the same
  // topology.
  static absl::StatusOr<std::unique_ptr<Mesh>> Create(const Topology& topology,
                                                      Communicator* world);

  const Topology& topology() const { return topology_; }
  const Coordinate& coordinate() const { return coordinate_; }
  int rank() const { return topology_.RankOf(coordinate_); }

  // Null if created without one.
  Communicator* world() const { return groups_[kWorld].communicator; }
  // The ranks that differ from this one on one axis only, by their position on it; null where the
  // axis has size 1.
  Communicator* tensor() const { return groups_[kTensor].communicator; }
  Communicator* data() const { return groups_[kData].communicator; }
  Communicator* pipeline() const { return groups_[kPipeline].communicator; }
  // The first (rank 0) and the last stage (rank 1) at the same tensor and data coordinates, which
  // both hold the table of tied embeddings; null with one stage and on the stages between.
  Communicator* tied() const { return groups_[kTied].communicator; }

  bool first_stage() const { return coordinate_.pipeline == 0; }
  bool last_stage() const { return coordinate_.pipeline == topology_.pipeline - 1; }
  // The layers of one of this rank's chunks.
  ChunkLayers LayersOf(int64_t num_layers, int64_t head_layers, int chunk) const {
    return LayersOfChunk(num_layers, head_layers, topology_, coordinate_.pipeline, chunk);
  }

  // Bytes that this rank has sent since the last call (initially: since Create), without operations
  // that were not called. Does not reset the communicators' own counters.
  std::vector<WireTraffic> TakeTraffic();

 private:
  enum GroupIndex { kTensor, kData, kPipeline, kTied, kWorld, kGroupCount };
  struct AxisGroup {
    std::string_view name;
    std::unique_ptr<Communicator> owned;
    Communicator* communicator = nullptr;
    CommCounters seen;
  };

  Mesh(const Topology& topology, Communicator* world);
  absl::Status SplitWorld();

  const Topology topology_;
  Coordinate coordinate_;
  std::array<AxisGroup, kGroupCount> groups_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_MESH_H_
