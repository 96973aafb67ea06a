#ifndef TESSERA_CHECKPOINT_MANAGER_OPEN_FOLDER_H_
#define TESSERA_CHECKPOINT_MANAGER_OPEN_FOLDER_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The storages of a folder that CheckpointManager::Open() opens by its name, on one rank.
struct OpenedFolder {
  std::unique_ptr<Storage> storage;  // null: the job does not save, and there is no folder
  std::unique_ptr<Storage> to_lock;  // null: this rank locks nothing
};

// Opens the folder, for writing if the job saves, and its staging folder with async_upload.
absl::StatusOr<OpenedFolder> OpenFolder(std::string_view name,
                                        const CheckpointManagerOptions& options,
                                        const OpenStorageOptions& open, bool is_rank_0);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_OPEN_FOLDER_H_
