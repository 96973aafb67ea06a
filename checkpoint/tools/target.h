#ifndef TESSERA_CHECKPOINT_TOOLS_TARGET_H_
#define TESSERA_CHECKPOINT_TOOLS_TARGET_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// A checkpoint named on the command line.
struct Target {
  std::unique_ptr<Storage> storage;
  std::string directory;  // within the storage; may be empty

  std::string Describe() const { return storage->Describe(directory); }
};

// `path` is a checkpoint's directory, or a folder of checkpoints, of which the newest is used.
// NotFound for any other path.
absl::StatusOr<Target> OpenTarget(const std::string& path);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_TARGET_H_
