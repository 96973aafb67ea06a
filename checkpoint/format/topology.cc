#include "checkpoint/format/topology.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tessera::ckpt {

TopologyProto ToProto(const Topology& topology) {
  TopologyProto proto;
  proto.set_data_parallel(topology.data);
  proto.set_tensor_parallel(topology.tensor);
  proto.set_pipeline_parallel(topology.pipeline);
  proto.set_virtual_pipeline(topology.virtual_pipeline);
  proto.set_zero_stage(topology.zero_stage);
  proto.set_rank_order("tp-dp-pp");
  proto.set_sequence_parallel(topology.sequence_parallel);
  return proto;
}

Topology FromProto(const TopologyProto& proto) {
  const auto number = [](uint32_t value, uint32_t least) {
    constexpr uint32_t kMax = std::numeric_limits<int>::max();
    return static_cast<int>(std::clamp(value, least, kMax));
  };
  return {.tensor = number(proto.tensor_parallel(), 1),
          .data = number(proto.data_parallel(), 1),
          .pipeline = number(proto.pipeline_parallel(), 1),
          .virtual_pipeline = number(proto.virtual_pipeline(), 1),
          .zero_stage = number(proto.zero_stage(), 0),
          .sequence_parallel = proto.sequence_parallel()};
}

}  // namespace tessera::ckpt
