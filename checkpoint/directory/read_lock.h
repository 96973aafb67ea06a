#ifndef TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
#define TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_

#include "absl/status/statusor.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/checkpoint_info.h"
#include "checkpoint/include/read_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Calls removal.Delete() and returns true, unless the checkpoint is being read.
absl::StatusOr<bool> RemoveUnlessRead(Storage& storage, Removal& removal,
                                      const CheckpointInfo& dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
