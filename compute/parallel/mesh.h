#ifndef TESSERA_COMPUTE_PARALLEL_MESH_H_
#define TESSERA_COMPUTE_PARALLEL_MESH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "layout/topology.h"

namespace tessera {

// Bytes that one operation has sent along one axis.
struct WireTraffic {
  std::string_view group;  // "tp", "dp", "pp", "tied" or "world"
  CommOp op = CommOp::kBarrier;
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // as CommCounter counts them, by this rank
};

// The communicators of a mesh for host memory; null if the axis has size 1.
struct HostGroups {
  Communicator* tensor = nullptr;
  Communicator* data = nullptr;
  Communicator* pipeline = nullptr;
  Communicator* tied = nullptr;
};

// A topology, this rank's coordinate in it, and its communicators.
//
// Threads: as Communicator.
class Mesh {
 public:
  // Creates a mesh; every rank of `world`, which must outlive the mesh, calls with the same
  // topology. `world` may be null if the topology has one rank; otherwise its size must be the
  // topology's (the error names both and the axes' sizes). `device_world` has the same ranks with
  // buffers in device memory; null if tensors are in host memory. ValidateTopology() checks whether
  // a model fits the topology.
  static absl::StatusOr<std::unique_ptr<Mesh>> Create(const Topology& topology, Communicator* world,
                                                      Communicator* device_world = nullptr);

  const Topology& topology() const { return topology_; }
  const Coordinate& coordinate() const { return coordinate_; }
  int rank() const { return topology_.RankOf(coordinate_); }

  // Returns the world, for host memory; null if the mesh was created without one.
  Communicator* world() const { return groups_[kWorld].communicator; }
  // Returns the groups of ranks that differ from this one on one axis only, by their position on
  // it; null if the axis has size 1. Buffers are tensors in the memory of the mesh's device.
  Communicator* tensor() const { return OfTensors(kTensor); }
  Communicator* data() const { return OfTensors(kData); }
  Communicator* pipeline() const { return OfTensors(kPipeline); }
  // Returns the group of the two stages that hold the table of tied embeddings, at the same tensor
  // and data coordinates: the first stage (rank 0) and the last (rank 1). Null with one stage and
  // on the stages between.
  Communicator* tied() const { return OfTensors(kTied); }
  // Returns the groups of the axes, for host memory.
  HostGroups host() const {
    return {.tensor = groups_[kTensor].communicator,
            .data = groups_[kData].communicator,
            .pipeline = groups_[kPipeline].communicator,
            .tied = groups_[kTied].communicator};
  }

  bool first_stage() const { return coordinate_.pipeline == 0; }
  bool last_stage() const { return coordinate_.pipeline == topology_.pipeline - 1; }
  // Returns the layers of one of this rank's chunks.
  ChunkLayers LayersOf(int64_t num_layers, int64_t head_layers, int chunk) const {
    return LayersOfChunk(num_layers, head_layers, topology_, coordinate_.pipeline, chunk);
  }

  // Returns the bytes that this rank has sent since the last call, or since Create(), without
  // operations that were not called. Does not reset the communicators' own counters.
  std::vector<WireTraffic> TakeTraffic();

 private:
  enum GroupIndex { kTensor, kData, kPipeline, kTied, kWorld, kGroupCount };
  struct AxisGroup {
    std::string_view name;
    std::unique_ptr<Communicator> owned;
    Communicator* communicator = nullptr;
    std::unique_ptr<Communicator> on_device;  // null without a device
    CommCounters seen;                        // of both
  };

  Mesh(const Topology& topology, Communicator* world);
  absl::Status SplitWorld(Communicator* device_world);
  Communicator* OfTensors(GroupIndex index) const {
    const AxisGroup& group = groups_[index];
    return group.on_device != nullptr ? group.on_device.get() : group.communicator;
  }
  static CommCounters CountersOf(const AxisGroup& group);

  const Topology topology_;
  Coordinate coordinate_;
  std::array<AxisGroup, kGroupCount> groups_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_MESH_H_
