// How CheckpointManager::Open() opens a folder by its name, and makes its staging folder.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/job_saves.h"
#include "storage/open_storage.h"
#include "storage/storage.h"
#include "storage/tiered/staging_folder.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera::ckpt {
namespace {

// The storages of a folder, on one rank.
struct OpenedFolder {
  std::unique_ptr<Storage> storage;  // null: the job does not save, and there is no folder
  std::unique_ptr<Storage> to_lock;  // null: this rank locks nothing
};

// Finds a read-only folder before the first save does, and the name of a checkpoint, which would
// look like a folder without checkpoints.
absl::Status CheckCanSave(Storage& storage) {
  const absl::Status found = ReadManifest(storage, "").status();
  if (found.ok() || absl::IsDataLoss(found)) {
    return absl::InvalidArgumentError(absl::StrCat(
        storage.Describe(""), " is a single checkpoint: expected the folder above it"));
  }
  if (!absl::IsNotFound(found)) return found;
  const std::optional<std::string> folder = storage.LocalPath("");
  if (!folder.has_value() || faccessat(AT_FDCWD, folder->c_str(), W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  return Named("nothing can be written to", *folder, ErrnoStatus(errno));
}

absl::Status CheckApart(std::string_view name, const std::string& tmp_folder) {
  const std::optional<std::string> path = LocalPathOfName(name);
  if (!path.has_value()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const bool overlap, FoldersOverlap(tmp_folder, *path));
  if (!overlap) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("async_upload_tmp_folder=", tmp_folder, " and ", *path,
                   ": one of them is, or contains, the other; name a folder of its own"));
}

// Adds the staging tier.
absl::StatusOr<std::unique_ptr<Storage>> WithStaging(std::string_view name,
                                                     const CheckpointManagerOptions& options,
                                                     const OpenStorageOptions& open,
                                                     std::unique_ptr<Storage> remote) {
  const std::string& parent = options.async_upload_tmp_folder;
  const std::string folder = StagingFolderOf(name, parent, open);
  TESSERA_RETURN_IF_ERROR(CheckApart(name, parent.empty() ? folder : parent));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> staging, OpenStagingFolder(folder));
  return std::make_unique<TieredStorage>(
      std::move(staging), std::move(remote),
      RoomOfStagingFolder(folder, options.background->available_memory_bytes));
}

// Opens the folder, for writing if the job saves, and its staging folder with async_upload.
absl::StatusOr<OpenedFolder> OpenFolder(std::string_view name,
                                        const CheckpointManagerOptions& options,
                                        const OpenStorageOptions& open, bool is_rank_0) {
  OpenedFolder opened;
  if (!options.schedule.saves) {
    if (name.empty()) return opened;
    absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(name, open);
    if (absl::IsNotFound(storage.status())) return opened;
    TESSERA_ASSIGN_OR_RETURN(opened.storage, std::move(storage));
    return opened;
  }
  if (options.async_upload && !options.background.has_value()) {
    return absl::InvalidArgumentError("async_upload is for saves in the background");
  }
  const OpenStorageOptions for_saving = ForSaving(open);
  if (is_rank_0) {
    TESSERA_ASSIGN_OR_RETURN(opened.to_lock, OpenStorage(name, for_saving));
    TESSERA_RETURN_IF_ERROR(CheckCanSave(*opened.to_lock));
  }
  TESSERA_ASSIGN_OR_RETURN(opened.storage, OpenStorage(name, for_saving));
  if (!options.async_upload) return opened;
  TESSERA_ASSIGN_OR_RETURN(opened.storage,
                           WithStaging(name, options, open, std::move(opened.storage)));
  return opened;
}

}  // namespace

std::string StagingFolderOf(std::string_view name, const std::string& tmp_folder,
                            const OpenStorageOptions& open) {
  return LocalFolderFor(name, open, tmp_folder, "_tmp_ckpt");
}

absl::StatusOr<std::unique_ptr<CheckpointManager>> CheckpointManager::Open(
    std::shared_ptr<Storage> storage, std::unique_ptr<Storage> to_lock,
    CheckpointManagerOptions options) {
  return JobSaves::Open(std::move(storage), std::move(to_lock), std::move(options));
}

absl::StatusOr<std::unique_ptr<CheckpointManager>> CheckpointManager::Open(
    std::string_view name, CheckpointManagerOptions options, const OpenStorageOptions& open) {
  return JobSaves::Open(name, std::move(options), open);
}

absl::StatusOr<std::unique_ptr<JobSaves>> JobSaves::Open(std::string_view name,
                                                         CheckpointManagerOptions options,
                                                         const OpenStorageOptions& open) {
  SingleProcessGroup alone;
  ProcessGroup& group = options.save.group != nullptr ? *options.save.group : alone;
  absl::StatusOr<OpenedFolder> opened = OpenFolder(name, options, open, group.rank() == 0);
  const absl::Status agreed = AgreeOnStatus(group, opened.status(), options.save.timeout);
  TESSERA_RETURN_IF_ERROR(opened.ok() ? agreed : opened.status());
  options.async_upload = false;  // the storage does it
  return Open(std::move(opened->storage), std::move(opened->to_lock), std::move(options));
}

}  // namespace tessera::ckpt
