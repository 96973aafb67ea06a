#include "compute/parallel/mesh.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

Mesh::Mesh(const Topology& topology, Communicator* world) : topology_(topology) {
  groups_[kTensor].name = "tp";
  groups_[kData].name = "dp";
  groups_[kPipeline].name = "pp";
  groups_[kTied].name = "tied";
  groups_[kWorld].name = "world";
  groups_[kWorld].communicator = world;
  coordinate_ = topology.CoordinateOf(world == nullptr ? 0 : world->rank());
}

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Create(const Topology& topology, Communicator* world,
                                                   Communicator* device_world) {
  TESSERA_RETURN_IF_ERROR(ValidateSizes(topology));
  const int ranks = world == nullptr ? 1 : world->size();
  if (ranks != topology.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data_parallel_size = ", topology.data, ", tensor_model_parallel_size = ", topology.tensor,
        " and pipeline_model_parallel_size = ", topology.pipeline, " make ", topology.world_size(),
        topology.world_size() == 1 ? " rank" : " ranks", ", but ", ranks,
        ranks == 1 ? " process was started" : " processes were started"));
  }
  std::unique_ptr<Mesh> mesh(new Mesh(topology, world));
  TESSERA_RETURN_IF_ERROR(mesh->SplitWorld(device_world));
  for (AxisGroup& group : mesh->groups_) {
    if (group.communicator != nullptr) group.seen = CountersOf(group);
  }
  return mesh;
}

absl::Status Mesh::SplitWorld(Communicator* device_world) {
  const Coordinate& at = coordinate_;
  // The first rank of each group names it; the position on the axis orders it.
  const auto first_of = [&](Coordinate first, int Coordinate::*axis) {
    first.*axis = 0;
    return topology_.RankOf(first);
  };
  struct Part {
    GroupIndex group;
    int size, color, key;
  };
  const bool at_an_end = first_stage() || last_stage();
  const int pipeline_color = first_of(at, &Coordinate::pipeline);
  for (const Part& part : {
           Part{kTensor, topology_.tensor, first_of(at, &Coordinate::tensor), at.tensor},
           Part{kData, topology_.data, first_of(at, &Coordinate::data), at.data},
           Part{kPipeline, topology_.pipeline, pipeline_color, at.pipeline},
           Part{kTied, topology_.pipeline, at_an_end ? pipeline_color : -1, at.pipeline},
       }) {
    if (part.size == 1) continue;  // the same on all ranks
    AxisGroup& group = groups_[part.group];
    TESSERA_ASSIGN_OR_RETURN(group.owned, world()->Split(part.color, part.key, group.name));
    group.communicator = group.owned.get();
    if (device_world == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(group.on_device,
                             device_world->Split(part.color, part.key, group.name));
  }
  return absl::OkStatus();
}

CommCounters Mesh::CountersOf(const AxisGroup& group) {
  CommCounters sum = group.communicator->counters();
  if (group.on_device == nullptr) return sum;
  const CommCounters& device = group.on_device->counters();
  for (int i = 0; i < kCommOpCount; ++i) {
    sum.by_op[i].calls += device.by_op[i].calls;
    sum.by_op[i].bytes_sent += device.by_op[i].bytes_sent;
  }
  return sum;
}

std::vector<WireTraffic> Mesh::TakeTraffic() {
  std::vector<WireTraffic> traffic;
  for (AxisGroup& group : groups_) {
    if (group.communicator == nullptr) continue;
    const CommCounters now = CountersOf(group);
    for (int i = 0; i < kCommOpCount; ++i) {
      const CommOp op = static_cast<CommOp>(i);
      const int64_t calls = now[op].calls - group.seen[op].calls;
      if (calls == 0) continue;
      traffic.push_back({.group = group.name,
                         .op = op,
                         .calls = calls,
                         .bytes_sent = now[op].bytes_sent - group.seen[op].bytes_sent});
    }
    group.seen = now;
  }
  return traffic;
}

}  // namespace tessera
