#ifndef TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_

// The manifest of a checkpoint as a protobuf message. It is for programs that fill in more fields
// than checkpoint.h offers (topology, trainer state, model, optimizer) or read more than Checkpoint
// offers. The files manifest.proto and FORMAT.md describe the fields.
//
// Implemented in checkpoint/format/manifest.cc; ReadManifest() in
// checkpoint/directory/directory.cc.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/partition.h"
#include "layout/topology.h"

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

// Reads and checks the manifest of a committed checkpoint. Errors: NotFound (listing the existing
// ones), DataLoss, also if the directory is named for another step than the manifest's. A directory
// whose name states no step may hold any step.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, std::string_view checkpoint_dir);

// Wraps a manifest for CheckpointFolder::Save() and AsyncSaver::Start(). Its tensors and files must
// be empty.
inline Metadata ToMetadata(Manifest manifest) {
  return {.manifest = std::make_shared<const Manifest>(std::move(manifest))};
}

// Returns the size of all data files in bytes.
uint64_t BytesOfFiles(const Manifest& manifest);

// Accessors of one tensor. Precondition: a valid tensor, shard in [0, ShardCount).
Shape GlobalShape(const LogicalTensor& tensor);
int64_t ShardCount(const LogicalTensor& tensor);
Box ShardBox(const LogicalTensor& tensor, int64_t shard);
uint64_t ShardBytes(const LogicalTensor& tensor, int64_t shard);

// Convert dtypes and roles to the manifest's enums, and back. Numbers that this version does not
// know are kept.
inline DTypeProto ToProto(DType dtype) { return static_cast<DTypeProto>(dtype); }
inline RoleProto ToProto(TensorRole role) { return static_cast<RoleProto>(role); }
inline DType FromProto(DTypeProto dtype) { return static_cast<DType>(dtype); }
inline TensorRole FromProto(RoleProto role) { return static_cast<TensorRole>(role); }

// Return names in the manifest's enums, for messages: "F32", "OPTIMIZER_STATE".
inline const std::string& ProtoName(DType dtype) { return DTypeProto_Name(ToProto(dtype)); }
inline const std::string& ProtoName(TensorRole role) { return RoleProto_Name(ToProto(role)); }

PartitionProto ToProto(const Partition& partition);

// Converts a partition. Numbers that no int holds become ones that CheckPartition() refuses.
Partition FromProto(const PartitionProto& proto);

TopologyProto ToProto(const Topology& topology);

// Converts a topology. Absent sizes become 1; impossible sizes, which another program may have
// written, become the largest possible. A manifest's topology is only shown, never relied on.
Topology FromProto(const TopologyProto& proto);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_
