#ifndef TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
#define TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/checkpoint_info.h"
#include "checkpoint/include/read_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Calls `call` with the lock of a checkpoint, unless the checkpoint is being read.
void UnlessRead(const Storage& storage, std::string_view dir, const std::function<void()>& call);

// Calls removal.Delete() and returns true, unless the checkpoint is being read.
absl::StatusOr<bool> RemoveUnlessRead(Storage& storage, Removal& removal,
                                      const CheckpointInfo& dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
