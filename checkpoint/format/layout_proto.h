#ifndef TESSERA_CHECKPOINT_FORMAT_LAYOUT_PROTO_H_
#define TESSERA_CHECKPOINT_FORMAT_LAYOUT_PROTO_H_

// Partitions and topologies as the manifest records them, and back.

#include "checkpoint/format/manifest.pb.h"
#include "layout/partition.h"
#include "layout/topology.h"

namespace tessera::ckpt {

PartitionProto ToProto(const Partition& partition);

// Numbers that no int holds become ones that CheckPartition refuses.
Partition FromProto(const PartitionProto& proto);

TopologyProto ToProto(const Topology& topology);

// Absent sizes are 1; sizes that no process count can have, as another program may have written
// them, are the largest. A manifest's topology is information: it is shown, never relied on.
Topology FromProto(const TopologyProto& proto);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_LAYOUT_PROTO_H_
