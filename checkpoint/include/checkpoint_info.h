#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::ckpt {

// A directory that is named for a step: a complete or incomplete checkpoint.
struct CheckpointInfo {
  int64_t step = 0;
  std::string directory;  // inside the storage
  bool rolling = false;   // in a rolling slot of a CheckpointManager
  // Whether the checkpoint is committed. False: a save was started but never committed. An error:
  // the directory cannot be listed, and may hold a checkpoint.
  absl::StatusOr<bool> committed = true;

  bool operator==(const CheckpointInfo&) const = default;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_
