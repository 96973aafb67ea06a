#ifndef TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_
#define TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_

// The manifest of a checkpoint as the protobuf message that it is, for programs that fill in more
// of it than checkpoint.h asks for (topology, trainer state, model, optimizer) or read more than
// Checkpoint offers. manifest.proto and FORMAT.md describe its fields.

#include <memory>
#include <utility>

#include "checkpoint/directory/directory.h"  // ReadManifest()
#include "checkpoint/format/dtype.h"         // DType, TensorRole <-> their enums
#include "checkpoint/format/layout_proto.h"  // Partition, Topology <-> their messages
#include "checkpoint/format/manifest.h"      // accessors of its tensors, its codec
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {

// For SaveOptions::metadata and AsyncSaver::Start(). Its tensors and files must be empty.
inline Metadata ToMetadata(Manifest manifest) {
  return {.manifest = std::make_shared<const Manifest>(std::move(manifest))};
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_MANIFEST_H_
