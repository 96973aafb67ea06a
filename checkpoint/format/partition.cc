#include "checkpoint/format/partition.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tessera::ckpt {

PartitionProto ToProto(const Partition& partition) {
  PartitionProto proto;
  if (partition.dim >= 0) proto.set_dim(partition.dim);
  if (partition.sections != 1) proto.set_sections(partition.sections);
  proto.set_padded(partition.padded);
  if (partition.layer >= 0) proto.set_layer(partition.layer);
  proto.set_before_layers(partition.before_layers);
  proto.set_after_layers(partition.after_layers);
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
  if (proto.has_layer()) partition.layer = proto.layer();
  partition.before_layers = proto.before_layers();
  partition.after_layers = proto.after_layers();
  return partition;
}

}  // namespace tessera::ckpt
