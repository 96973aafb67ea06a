#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "storage/storage.h"

namespace tessera::ckpt {

absl::StatusOr<CheckpointFolder> CheckpointFolder::Open(std::string_view name,
                                                        const OpenStorageOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                           OpenStorage(name, options.create_root ? ForSaving(options) : options));
  return CheckpointFolder(std::move(storage));
}

CheckpointFolder::CheckpointFolder(Storage& storage)
    : storage_(std::shared_ptr<Storage>(), &storage) {}

absl::StatusOr<SaveReport> CheckpointFolder::Save(const SaveRequest& request,
                                                  const StateDict& state,
                                                  const SaveOptions& options) const {
  return SaveNow(*storage_, request, state, options);
}

absl::StatusOr<FolderContents> CheckpointFolder::ListAll() const {
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> directories,
                           ListStepDirectories(*storage_, ""));
  FolderContents contents;
  for (CheckpointInfo& dir : directories) {
    std::vector<CheckpointInfo>& list = !dir.readable.ok() ? contents.unreadable
                                        : dir.committed    ? contents.committed
                                                           : contents.uncommitted;
    list.push_back(std::move(dir));
  }
  return contents;
}

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointFolder::List() const {
  TESSERA_ASSIGN_OR_RETURN(FolderContents contents, ListAll());
  return std::move(contents.committed);
}

absl::StatusOr<FoundCheckpoint> CheckpointFolder::FindLatest() const {
  TESSERA_ASSIGN_OR_RETURN(const FolderContents contents, ListAll());
  const std::vector<CheckpointInfo>& unreadable = contents.unreadable;
  std::vector<CheckpointInfo> checkpoints = contents.committed;
  if (!unreadable.empty() &&
      (checkpoints.empty() || checkpoints.back().step < unreadable.back().step)) {
    return unreadable.back().readable;
  }
  if (checkpoints.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", storage_->Describe("")));
  }
  std::ranges::reverse(checkpoints);
  return ChooseToRead(*storage_, checkpoints);
}

absl::StatusOr<Checkpoint> CheckpointFolder::Latest() const {
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest, FindLatest());
  return At(latest.checkpoint);
}

absl::StatusOr<Checkpoint> CheckpointFolder::At(const CheckpointInfo& checkpoint) const {
  return OpenCheckpoint(storage_, checkpoint.directory);
}

absl::StatusOr<Checkpoint> CheckpointFolder::At(int64_t step) const {
  return OpenCheckpoint(storage_, StepDirectoryName(step));
}

absl::StatusOr<VerifyReport> CheckpointFolder::Verify(std::string_view directory,
                                                      const VerifyOptions& options) const {
  return VerifyCheckpoint(*storage_, directory, options);
}

absl::Status CheckpointFolder::Prune(int keep, std::optional<int64_t> saved_step) const {
  return Retention(*storage_, {.newest = std::max(keep, 1)}).Apply(absl::Now(), saved_step);
}

}  // namespace tessera::ckpt
