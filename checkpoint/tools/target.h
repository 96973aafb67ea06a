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

// `name` (see OpenStorage()) is that of a checkpoint's directory, or of a folder of checkpoints, of
// which the newest is used. NotFound for any other place.
absl::StatusOr<Target> OpenTarget(const std::string& name, const std::string& s3_endpoint);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_TARGET_H_
