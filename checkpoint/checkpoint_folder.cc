#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/manager/saved_checkpoints.h"
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

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointFolder::List(
    std::vector<CheckpointInfo>* unreadable) const {
  return ListCommitted(*storage_, "", unreadable);
}

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointFolder::ListUncommitted() const {
  return ckpt::ListUncommitted(*storage_, "");
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::FindLatest(std::vector<std::string>* notes) const {
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, List(&unreadable));
  if (!unreadable.empty() &&
      (checkpoints.empty() || checkpoints.back().step < unreadable.back().step)) {
    return unreadable.back().readable;
  }
  if (checkpoints.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", storage_->Describe("")));
  }
  std::ranges::reverse(checkpoints);
  ChosenCheckpoint chosen = ChooseToRead(*storage_, checkpoints);
  if (notes != nullptr) *notes = std::move(chosen.notes);
  return std::move(chosen.checkpoint);
}

absl::StatusOr<Checkpoint> CheckpointFolder::Latest(std::vector<std::string>* notes) const {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointInfo latest, FindLatest(notes));
  return OpenCheckpoint(storage_, latest.directory);
}

absl::StatusOr<Checkpoint> CheckpointFolder::At(int64_t step) const {
  return OpenCheckpoint(storage_, StepDirectoryName(step));
}

absl::StatusOr<VerifyReport> CheckpointFolder::Verify(std::string_view directory,
                                                      const VerifyOptions& options) const {
  return VerifyCheckpoint(*storage_, directory, options);
}

absl::Status CheckpointFolder::Prune(int keep, std::optional<int64_t> saved_step) const {
  absl::Status first_error = SettleDiscarded(*storage_, "");
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> directories,
                           ListStepDirectories(*storage_, ""));
  std::erase_if(directories, [&](const CheckpointInfo& dir) {
    return !dir.readable.ok() || storage_->IsLink(dir.directory);
  });
  int64_t newest = -1, oldest_kept = -1;
  bool found_healthy = false;
  std::set<int64_t> also_kept;  // the newest healthy one, and what may be it
  std::map<int64_t, std::optional<std::string>> judged;
  for (auto dir = directories.rbegin(); dir != directories.rend(); ++dir) {
    if (!dir->committed) continue;
    // Read before the rest: another process may replace the checkpoint at any time.
    const absl::StatusOr<std::string> identity = ManifestIdentity(*storage_, dir->directory);
    first_error.Update(identity.status());
    if (identity.ok()) judged[dir->step] = *identity;
    if (oldest_kept >= 0 && found_healthy) continue;
    newest = std::max(newest, dir->step);
    const absl::StatusOr<Manifest> manifest = ReadIntact(*storage_, dir->directory);
    const bool is_unknown = !manifest.ok() && !MayBeDamage(manifest.status());
    if (is_unknown) first_error.Update(manifest.status());
    const bool is_healthy = manifest.ok() && IsHealthy(*manifest);
    if (!found_healthy && (is_healthy || is_unknown)) also_kept.insert(dir->step);
    found_healthy |= is_healthy;
    if (manifest.ok() && --keep <= 0 && oldest_kept < 0) oldest_kept = dir->step;
  }
  bool removed = false;
  const std::unique_ptr<Removal> removal = Removal::In(*storage_);
  for (const CheckpointInfo& dir : directories) {
    if (dir.step >= (dir.committed ? oldest_kept : newest) || dir.step == saved_step) continue;
    if (dir.committed && (also_kept.contains(dir.step) || !judged.contains(dir.step))) continue;
    const absl::StatusOr<bool> deleted =
        RemoveUnlessRead(*storage_, *removal, dir, judged[dir.step]);
    first_error.Update(deleted.status());
    removed |= deleted.value_or(true);
  }
  if (removed) first_error.Update(storage_->SyncDirectory(""));
  return first_error;
}

}  // namespace tessera::ckpt
