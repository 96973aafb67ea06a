#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::ckpt {

// A directory that is named for a step: a checkpoint, or what there is of one.
struct CheckpointInfo {
  int64_t step = 0;
  std::string directory;  // inside the storage
  bool rolling = false;   // a CheckpointManager's, in a slot of its own
  // False: a save was started there and never committed. An error: the directory cannot be listed,
  // so that it may hold a checkpoint or not.
  absl::StatusOr<bool> committed = true;

  bool operator==(const CheckpointInfo&) const = default;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_INFO_H_
