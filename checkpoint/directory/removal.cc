#include "checkpoint/directory/removal.h"

#include <algorithm>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/directory/fence.h"
#include "checkpoint/directory/in_place_removal.h"
#include "checkpoint/directory/read_lock.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

using internal::Contains;
using internal::FreeName;
using internal::InPlaceRemoval;
using internal::ListIfThere;
using internal::ManifestPath;

constexpr std::string_view kDiscarded = ".discarded-";

std::string DiscardedName(std::string_view dir) {
  return absl::StrFormat("%s%s%08x", std::string(dir), std::string(kDiscarded),
                         std::random_device()());
}

bool HasQuarantined(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, IsQuarantinedName);
}

// Deletes a manifest durably.
absl::Status DeleteManifest(Storage& storage, std::string_view dir) {
  TESSERA_RETURN_IF_ERROR(storage.Delete(ManifestPath(dir)));
  return storage.SyncDirectory(dir);
}

// In a storage that renames directories.
class RenamingRemoval final : public InPlaceRemoval {
 public:
  explicit RenamingRemoval(Storage& storage) : InPlaceRemoval(storage) {}

  absl::StatusOr<Leftovers> DiscardLeftovers(std::string_view checkpoint_dir) override {
    TESSERA_ASSIGN_OR_RETURN(bool committed, IsCommitted(storage(), checkpoint_dir));
    if (committed) return Leftovers::kCommitted;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage(), checkpoint_dir));
    if (HasQuarantined(names)) return ReuseDirectory(checkpoint_dir, names);
    const absl::Status renamed = storage().Rename(checkpoint_dir, DiscardedName(checkpoint_dir));
    if (absl::IsUnimplemented(renamed)) return names.empty() ? Leftovers::kNone : Leftovers::kKept;
    if (!absl::IsNotFound(renamed)) TESSERA_RETURN_IF_ERROR(renamed);
    TESSERA_RETURN_IF_ERROR(SettleDiscarded(storage(), FolderOf(checkpoint_dir)));
    TESSERA_ASSIGN_OR_RETURN(committed, IsCommitted(storage(), checkpoint_dir));
    return committed ? Leftovers::kCommitted : Leftovers::kNone;
  }

  absl::StatusOr<bool> Delete(const CheckpointInfo& dir) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage(), dir.directory));
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Names> quarantined,
                             FindQuarantined(dir.directory, names));
    if (!quarantined.has_value()) return false;
    if (!quarantined->empty()) return DeleteInPlace(dir, names, *quarantined);
    if (*dir.committed) TESSERA_RETURN_IF_ERROR(DeleteManifest(storage(), dir.directory));
    const std::string discarded = DiscardedName(dir.directory);
    const absl::Status renamed = storage().Rename(dir.directory, discarded);
    if (absl::IsNotFound(renamed)) return true;
    TESSERA_RETURN_IF_ERROR(renamed);
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage(), discarded));
    if (committed) {
      TESSERA_RETURN_IF_ERROR(storage().Rename(discarded, dir.directory));
      return false;
    }
    TESSERA_RETURN_IF_ERROR(storage().DeleteTree(discarded));
    return true;
  }

  absl::Status TakeBack(std::string_view checkpoint_dir, std::string_view manifest_bytes) override {
    const absl::StatusOr<std::string> there =
        ReadAll(storage(), ManifestPath(checkpoint_dir), kMaxManifestBytes);
    if (absl::IsNotFound(there.status())) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(there.status());
    return *there == manifest_bytes ? DeleteManifest(storage(), checkpoint_dir) : absl::OkStatus();
  }

  absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir, std::string_view word,
                                         const std::string* expected) override {
    if (expected != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(const std::string manifest,
                               ReadAll(storage(), ManifestPath(checkpoint_dir), kMaxManifestBytes));
      if (manifest != *expected) {
        return absl::AbortedError(
            absl::StrCat(storage().Describe(checkpoint_dir), " has been replaced"));
      }
    }
    const std::string_view parent = FolderOf(checkpoint_dir);
    const std::string_view name = checkpoint_dir.substr(parent.empty() ? 0 : parent.size() + 1);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> siblings, storage().List(parent));
    std::string to = JoinPath(parent, FreeName(siblings, name, word));
    TESSERA_RETURN_IF_ERROR(storage().Rename(checkpoint_dir, to));
    TESSERA_RETURN_IF_ERROR(storage().SyncDirectory(parent));
    return to;
  }

  bool frees_names() const override { return true; }

 private:
  // A directory that was copied from an object store, whose late writers cannot reach this one.
  absl::StatusOr<Leftovers> ReuseDirectory(std::string_view dir,
                                           const std::vector<std::string>& names) {
    TESSERA_ASSIGN_OR_RETURN(const Leftovers left, FenceLeftovers(dir, names));
    if (left == Leftovers::kKept && Contains(names, kManifestFileName)) {
      TESSERA_RETURN_IF_ERROR(storage().Delete(ManifestPath(dir)));
    }
    return left;
  }

  absl::Status Uncommit(std::string_view dir, const std::vector<std::string>&,
                        const Names&) override {
    return DeleteManifest(storage(), dir);
  }
  // What is there already keeps others from committing.
  absl::Status ReplaceByTombstone(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status FenceOthers(std::string_view) override { return absl::OkStatus(); }
};

// In a storage that does not rename directories, such as an object store.
class FencingRemoval final : public InPlaceRemoval {
 public:
  explicit FencingRemoval(Storage& storage) : InPlaceRemoval(storage) {}

  absl::StatusOr<Leftovers> DiscardLeftovers(std::string_view checkpoint_dir) override {
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage(), checkpoint_dir));
    if (committed) return Leftovers::kCommitted;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage(), checkpoint_dir));
    return FenceLeftovers(checkpoint_dir, names);
  }

  absl::StatusOr<bool> Delete(const CheckpointInfo& dir) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage(), dir.directory));
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Names> quarantined,
                             FindQuarantined(dir.directory, names));
    if (!quarantined.has_value()) return false;
    return DeleteInPlace(dir, names, *quarantined);
  }

  absl::Status TakeBack(std::string_view checkpoint_dir, std::string_view manifest_bytes) override {
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage(), checkpoint_dir));
    const std::string path = ManifestPath(checkpoint_dir);
    const absl::StatusOr<VersionedContents> there = storage().Read(path, kMaxManifestBytes);
    if (absl::IsNotFound(there.status())) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(there.status());
    if (there->contents != manifest_bytes) return absl::OkStatus();
    const absl::Status taken = ReplaceByTombstone(path, there->version);
    return absl::IsAborted(taken) ? absl::OkStatus() : taken;
  }

  // Copies the manifest and replaces it by a tombstone. Once the copy is there, the checkpoint is
  // no longer committed (IsCommitted); the next call completes one that was interrupted in between.
  absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir, std::string_view word,
                                         const std::string* expected) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage().List(checkpoint_dir));
    const std::string from = ManifestPath(checkpoint_dir);
    TESSERA_ASSIGN_OR_RETURN(const VersionedContents manifest,
                             storage().Read(from, kMaxManifestBytes));
    if (expected != nullptr && manifest.contents != *expected) {
      return absl::AbortedError(absl::StrCat(storage().Describe(from), " has been replaced"));
    }
    std::string to;
    for (const std::string& name : names) {
      if (!IsQuarantinedName(name)) continue;
      const std::string path = JoinPath(checkpoint_dir, name);
      const absl::StatusOr<std::string> copy = ReadAll(storage(), path, kMaxManifestBytes);
      if (copy.ok() && *copy == manifest.contents) to = path;
    }
    if (to.empty()) {
      to = JoinPath(checkpoint_dir, FreeName(names, kManifestFileName, word));
      TESSERA_RETURN_IF_ERROR(storage().Write(to, manifest.contents, {}).status());
    }
    // A transfer may have damaged what was read, and the copy with it.
    TESSERA_ASSIGN_OR_RETURN(const std::string again, ReadAll(storage(), from, kMaxManifestBytes));
    if (again != manifest.contents) {
      return absl::UnavailableError(absl::StrCat(storage().Describe(from), ": reads differ"));
    }
    // A deletion whose repetition arrives late could delete what was committed since.
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage(), checkpoint_dir));
    const absl::Status replaced = ReplaceByTombstone(from, manifest.version);
    if (!absl::IsUnimplemented(replaced)) {
      TESSERA_RETURN_IF_ERROR(replaced);
      return to;
    }
    // The store has no conditional replacement, and so no tombstone could be replaced either.
    TESSERA_RETURN_IF_ERROR(DeleteManifest(storage(), checkpoint_dir));
    return to;
  }

  bool frees_names() const override { return false; }

 private:
  // If files in `names` say that a commit may still arrive, of another attempt or a repeated one, a
  // tombstone takes the manifest's place.
  absl::Status Uncommit(std::string_view dir, const std::vector<std::string>& names,
                        const Names& quarantined) override {
    const std::string path = ManifestPath(dir);
    const absl::StatusOr<VersionedContents> there = storage().Read(path, kMaxManifestBytes);
    if (absl::IsNotFound(there.status())) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(there.status());
    const absl::StatusOr<Manifest> manifest = DecodeManifest(there->contents);
    Names own = {std::string(kManifestSignatureFileName)};
    if (manifest.ok()) {
      for (const DataFile& file : manifest->files()) own.insert(file.path());
    }
    const bool alone =
        manifest.ok() && std::ranges::all_of(FindData(names, quarantined),
                                             [&](const auto& name) { return own.contains(name); });
    if (!alone || Contains(names, kFencedFileName)) {
      TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage(), dir));
      const absl::Status fenced = ReplaceByTombstone(path, there->version);
      // A store without conditional replacement cannot keep a repeated commit from arriving.
      if (!alone || !absl::IsUnimplemented(fenced)) return fenced;
    }
    return DeleteManifest(storage(), dir);
  }
  absl::Status ReplaceByTombstone(const std::string& path, const std::string& version) override {
    return storage().Write(path, MakeTombstone(), {.version = version}).status();
  }
  // They can try to commit as soon as the checkpoint beside them is deleted or quarantined.
  absl::Status FenceOthers(std::string_view dir) override { return MarkAsFenced(storage(), dir); }
};

}  // namespace

std::unique_ptr<Removal> Removal::In(Storage& storage) {
  if (storage.Traits().renames_directories) return std::make_unique<RenamingRemoval>(storage);
  return std::make_unique<FencingRemoval>(storage);
}

absl::Status SettleDiscarded(Storage& storage, std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListIfThere(storage, folder));
  for (std::string_view name : names) {
    const size_t at = name.find(kDiscarded);
    if (at == name.npos || !name.ends_with('/') || !ParseStepDirectoryName(name.substr(0, at))) {
      continue;
    }
    name.remove_suffix(1);
    const std::string path = JoinPath(folder, name);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> inside, ListIfThere(storage, path));
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage, path));
    const absl::Status settled = committed || HasQuarantined(inside)
                                     ? storage.Rename(path, JoinPath(folder, name.substr(0, at)))
                                     : storage.DeleteTree(path);
    if (absl::IsNotFound(settled) || absl::IsAlreadyExists(settled)) continue;
    TESSERA_RETURN_IF_ERROR(settled);
  }
  return absl::OkStatus();
}

absl::Status PruneStepDirectories(Storage& storage, std::string_view root, int keep,
                                  absl::FunctionRef<absl::Status(const CheckpointInfo&)> check) {
  absl::Status first_error = SettleDiscarded(storage, root);
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> directories,
                           ListStepDirectories(storage, root));
  std::erase_if(directories, [&](const CheckpointInfo& dir) {
    return !dir.committed.ok() || storage.IsLink(dir.directory);
  });
  int64_t newest = -1, oldest_kept = -1;
  for (auto dir = directories.rbegin(); dir != directories.rend() && oldest_kept < 0; ++dir) {
    if (!*dir->committed) continue;
    newest = std::max(newest, dir->step);
    const absl::Status intact = check(*dir);
    if (!intact.ok() && !MayBeDamage(intact)) first_error.Update(intact);
    if (intact.ok() && --keep <= 0) oldest_kept = dir->step;
  }
  bool removed = false;
  const std::unique_ptr<Removal> removal = Removal::In(storage);
  for (const CheckpointInfo& dir : directories) {
    if (dir.step >= (*dir.committed ? oldest_kept : newest)) continue;
    const RemovalLock lock(storage, dir.directory);
    if (lock.refused()) continue;
    first_error.Update(removal->Delete(dir).status());
    removed = true;
  }
  if (removed) first_error.Update(storage.SyncDirectory(root));
  return first_error;
}

}  // namespace tessera::ckpt
