#ifndef TESSERA_CHECKPOINT_FORMAT_PARTITION_H_
#define TESSERA_CHECKPOINT_FORMAT_PARTITION_H_

// A partition as the manifest records it, and back.

#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/partition.h"

namespace tessera::ckpt {

PartitionProto ToProto(const Partition& partition);

// Numbers that no int holds become ones that CheckPartition refuses.
Partition FromProto(const PartitionProto& proto);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_PARTITION_H_
