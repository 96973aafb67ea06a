#include "checkpoint/include/manifest.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace tessera::ckpt {

uint64_t BytesOfFiles(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const DataFile& file : manifest.files()) bytes += file.size_bytes();
  return bytes;
}

Shape GlobalShape(const LogicalTensor& tensor) {
  return Shape(tensor.global_shape().begin(), tensor.global_shape().end());
}

int64_t ShardCount(const LogicalTensor& tensor) { return tensor.shards().file_index_size(); }

Box ShardBox(const LogicalTensor& tensor, int64_t shard) {
  const int rank = tensor.global_shape_size();
  const Shards& shards = tensor.shards();
  const auto offset = shards.global_offset().begin() + shard * rank;
  const auto shape = shards.shape().begin() + shard * rank;
  return {std::vector<int64_t>(offset, offset + rank), Shape(shape, shape + rank)};
}

uint64_t ShardBytes(const LogicalTensor& tensor, int64_t shard) {
  const int rank = tensor.global_shape_size();
  uint64_t bytes = ElementSize(FromProto(tensor.dtype()));
  for (int d = 0; d < rank; ++d) bytes *= tensor.shards().shape()[shard * rank + d];
  return bytes;
}

PartitionProto ToProto(const Partition& partition) {
  PartitionProto proto;
  if (partition.dim >= 0) proto.set_dim(partition.dim);
  if (partition.sections != 1) proto.set_sections(partition.sections);
  proto.set_padded(partition.padded);
  if (partition.place.layer >= 0) proto.set_layer(partition.place.layer);
  proto.set_before_layers(partition.place.before_layers);
  proto.set_after_layers(partition.place.after_layers);
  return proto;
}

Partition FromProto(const PartitionProto& proto) {
  constexpr uint32_t kMax = std::numeric_limits<int>::max();
  Partition partition;
  if (proto.has_dim()) partition.dim = static_cast<int>(std::min(proto.dim(), kMax));
  if (proto.sections() > kMax) {
    partition.sections = 0;
  } else if (proto.sections() > 0) {
    partition.sections = static_cast<int>(proto.sections());
  }
  partition.padded = proto.padded();
  if (proto.has_layer()) partition.place.layer = proto.layer();
  partition.place.before_layers = proto.before_layers();
  partition.place.after_layers = proto.after_layers();
  return partition;
}

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
