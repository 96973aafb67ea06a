#ifndef TESSERA_CHECKPOINT_FORMAT_TOPOLOGY_H_
#define TESSERA_CHECKPOINT_FORMAT_TOPOLOGY_H_

// A topology as the manifest records it, and back.

#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/topology.h"

namespace tessera::ckpt {

TopologyProto ToProto(const Topology& topology);

// Absent sizes are 1; sizes that no process count can have, as another program may have written
// them, are the largest. A manifest's topology is information: it is shown, never relied on.
Topology FromProto(const TopologyProto& proto);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_TOPOLOGY_H_
