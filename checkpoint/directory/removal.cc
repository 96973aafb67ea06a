#include "checkpoint/directory/removal.h"

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/directory/fence.h"
#include "checkpoint/directory/read_lock.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kDiscarded = ".discarded-";

// After that long, no request can be on its way any more: an object store refuses one that was
// signed a quarter of an hour ago.
constexpr absl::Duration kTombstoneLife = absl::Hours(24);

constexpr int kAttemptsToFence = 5;

std::string ManifestPath(std::string_view dir) { return JoinPath(dir, kManifestFileName); }

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// None where the directory is not there.
absl::StatusOr<std::vector<std::string>> ListIfThere(Storage& storage, std::string_view dir) {
  absl::StatusOr<std::vector<std::string>> names = storage.List(dir);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

// The names among `names` that were set aside, and of all files that belong to them. Nullopt where
// that is not known, so that everything in the directory must stay.
using Names = std::set<std::string>;
absl::StatusOr<std::optional<Names>> FindQuarantined(Storage& storage, std::string_view dir,
                                                     const std::vector<std::string>& names) {
  Names set_aside;
  for (const std::string& name : names) {
    if (!IsQuarantinedName(name)) continue;
    set_aside.insert(name);
    const absl::StatusOr<std::string> bytes =
        ReadAll(storage, JoinPath(dir, name), kMaxManifestBytes);
    const bool unreadable = absl::IsNotFound(bytes.status()) || absl::IsDataLoss(bytes.status()) ||
                            absl::IsResourceExhausted(bytes.status()) ||
                            absl::IsInvalidArgument(bytes.status());
    if (unreadable) return std::nullopt;
    TESSERA_RETURN_IF_ERROR(bytes.status());
    if (IsTombstone(*bytes)) continue;  // names no files
    const absl::StatusOr<Manifest> manifest = DecodeManifest(*bytes);
    if (!manifest.ok()) return std::nullopt;
    for (const DataFile& file : manifest->files()) {
      const size_t slash = file.path().find('/');
      set_aside.insert(slash == std::string::npos ? file.path() : file.path().substr(0, slash + 1));
    }
  }
  return set_aside;
}

bool IsDataName(const std::string& name) {
  return name != kManifestFileName && name != kFencedFileName && !name.ends_with('/');
}

// Data files, those of temporary manifests included, that were not set aside.
std::vector<std::string> FindData(const std::vector<std::string>& names, const Names& set_aside) {
  std::vector<std::string> data;
  for (const std::string& name : names) {
    if (IsDataName(name) && !set_aside.contains(name)) data.push_back(name);
  }
  return data;
}

// Puts a new tombstone in the manifest's place, so that no attempt that has begun can commit. False
// where one has committed, or others keep changing it.
absl::StatusOr<bool> Fence(Storage& storage, std::string_view dir) {
  TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, dir));
  const std::string path = ManifestPath(dir);
  for (int i = 0; i < kAttemptsToFence; ++i) {
    const absl::StatusOr<std::string> there = ReadAll(storage, path, kMaxManifestBytes);
    absl::Status fenced;
    if (absl::IsNotFound(there.status())) {
      fenced = storage.Publish(path, MakeTombstone(), nullptr);
    } else {
      TESSERA_RETURN_IF_ERROR(there.status());
      TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage, dir));
      if (committed) return false;
      fenced = storage.Exchange(path, *there, MakeTombstone(), nullptr);
    }
    // Where directories are renamed, what is there already keeps others from committing.
    if (fenced.ok() || absl::IsUnimplemented(fenced)) {
      // Another process may just have found that an old fence can go.
      TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, dir));
      return true;
    }
    if (!absl::IsAlreadyExists(fenced) && !absl::IsAborted(fenced)) return fenced;
  }
  return false;
}

// Takes the manifest away, durably. Where directories cannot be renamed, and files in `names` say
// that a commit may still arrive, of another attempt or a repeated one, a tombstone takes its
// place.
absl::Status Uncommit(Storage& storage, std::string_view dir, const std::vector<std::string>& names,
                      const Names& set_aside) {
  const std::string path = ManifestPath(dir);
  if (!storage.RenamesDirectories()) {
    const absl::StatusOr<std::string> bytes = ReadAll(storage, path, kMaxManifestBytes);
    if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(bytes.status());
    const absl::StatusOr<Manifest> manifest = DecodeManifest(*bytes);
    Names own = {std::string(kManifestSignatureFileName)};
    if (manifest.ok()) {
      for (const DataFile& file : manifest->files()) own.insert(file.path());
    }
    const bool alone = manifest.ok() && std::ranges::all_of(FindData(names, set_aside),
                                                            [&](const std::string& name) {
                                                              return own.contains(name);
                                                            });
    if (!alone || Contains(names, kFencedFileName)) {
      TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, dir));
      const absl::Status fenced = storage.Exchange(path, *bytes, MakeTombstone(), nullptr);
      // A store without conditional replacement cannot keep a repeated commit from arriving.
      if (!alone || !absl::IsFailedPrecondition(fenced)) return fenced;
    }
  }
  TESSERA_RETURN_IF_ERROR(storage.Delete(path));
  return storage.SyncDirectory(dir);
}

// Deletes the remains of a fence that is no longer needed.
absl::Status ForgetFence(Storage& storage, std::string_view dir,
                         const std::vector<std::string>& names) {
  if (!Contains(names, kFencedFileName)) return absl::OkStatus();
  if (Contains(names, kManifestFileName)) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> tombstone,
                             ReadTombstone(storage, dir));
    if (tombstone.has_value()) {
      const absl::Time made = absl::FromUnixSeconds(TombstoneTime(*tombstone));
      if (absl::Now() - made < kTombstoneLife) return absl::OkStatus();
    }
  }
  // A tombstone without the other file would look like a manifest.
  const absl::Status deleted = storage.Delete(ManifestPath(dir));
  if (!absl::IsNotFound(deleted)) TESSERA_RETURN_IF_ERROR(deleted);
  return storage.DeleteFiles(dir, {std::string(kFencedFileName)});
}

// Deletes all but what was set aside, in a directory that keeps its name.
absl::StatusOr<bool> RemoveInPlace(Storage& storage, const CheckpointInfo& dir,
                                   const std::vector<std::string>& names, const Names& set_aside) {
  const std::vector<std::string> data = FindData(names, set_aside);
  if (*dir.committed) {
    TESSERA_RETURN_IF_ERROR(Uncommit(storage, dir.directory, names, set_aside));
  } else if (data.empty()) {
    TESSERA_RETURN_IF_ERROR(ForgetFence(storage, dir.directory, names));
    return true;
  } else {
    TESSERA_ASSIGN_OR_RETURN(const bool fenced, Fence(storage, dir.directory));
    if (!fenced) return false;
  }
  TESSERA_RETURN_IF_ERROR(storage.DeleteFiles(dir.directory, data));
  return true;
}

std::string DiscardedName(std::string_view dir) {
  return absl::StrFormat("%s%s%08x", std::string(dir), std::string(kDiscarded),
                         std::random_device()());
}

absl::StatusOr<bool> RemoveRenamed(Storage& storage, const CheckpointInfo& dir) {
  if (*dir.committed) {
    TESSERA_RETURN_IF_ERROR(storage.Delete(ManifestPath(dir.directory)));
    TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(dir.directory));
  }
  const std::string discarded = DiscardedName(dir.directory);
  const absl::Status renamed = storage.Rename(dir.directory, discarded);
  if (absl::IsNotFound(renamed)) return true;
  TESSERA_RETURN_IF_ERROR(renamed);
  TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage, discarded));
  if (committed) {
    TESSERA_RETURN_IF_ERROR(storage.Rename(discarded, dir.directory));
    return false;
  }
  TESSERA_RETURN_IF_ERROR(storage.DeleteTree(discarded));
  return true;
}

bool HasQuarantined(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, IsQuarantinedName);
}

}  // namespace

std::string FreeName(const std::vector<std::string>& names, std::string_view name,
                     std::string_view word) {
  const std::string first = absl::StrCat(std::string(name), ".", std::string(word));
  std::string candidate = first;
  for (int number = 2; Contains(names, candidate) || Contains(names, candidate + "/"); ++number) {
    candidate = absl::StrCat(first, "-", number);
  }
  return candidate;
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

absl::StatusOr<Leftovers> DiscardLeftovers(Storage& storage, std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(bool committed, IsCommitted(storage, checkpoint_dir));
  if (committed) return Leftovers::kCommitted;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListIfThere(storage, checkpoint_dir));
  if (!storage.RenamesDirectories() || HasQuarantined(names)) {
    if (names.empty()) return Leftovers::kNone;
    if (!Contains(names, kManifestFileName)) return Leftovers::kKept;
    const absl::Status tombstone = ReadTombstone(storage, checkpoint_dir).status();
    if (absl::IsAlreadyExists(tombstone)) {
      // Setting the manifest aside was interrupted, unless it was committed just now.
      TESSERA_ASSIGN_OR_RETURN(const bool fenced, Fence(storage, checkpoint_dir));
      if (!fenced) return Leftovers::kCommitted;
    } else {
      TESSERA_RETURN_IF_ERROR(tombstone);
    }
    if (storage.RenamesDirectories()) {
      // Copied from a storage whose late writers cannot reach this one.
      TESSERA_RETURN_IF_ERROR(storage.Delete(ManifestPath(checkpoint_dir)));
    }
    return Leftovers::kKept;
  }
  const absl::Status renamed = storage.Rename(checkpoint_dir, DiscardedName(checkpoint_dir));
  if (absl::IsUnimplemented(renamed)) return names.empty() ? Leftovers::kNone : Leftovers::kKept;
  if (!absl::IsNotFound(renamed)) TESSERA_RETURN_IF_ERROR(renamed);
  TESSERA_RETURN_IF_ERROR(SettleDiscarded(storage, FolderOf(checkpoint_dir)));
  TESSERA_ASSIGN_OR_RETURN(committed, IsCommitted(storage, checkpoint_dir));
  return committed ? Leftovers::kCommitted : Leftovers::kNone;
}

absl::StatusOr<bool> RemoveStepDirectory(Storage& storage, const CheckpointInfo& dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListIfThere(storage, dir.directory));
  TESSERA_ASSIGN_OR_RETURN(const std::optional<Names> set_aside,
                           FindQuarantined(storage, dir.directory, names));
  if (!set_aside.has_value()) return false;
  if (storage.RenamesDirectories() && set_aside->empty()) return RemoveRenamed(storage, dir);
  return RemoveInPlace(storage, dir, names, *set_aside);
}

absl::Status DeleteOtherAttempts(Storage& storage, std::string_view checkpoint_dir,
                                 const Manifest& committed) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(checkpoint_dir));
  TESSERA_ASSIGN_OR_RETURN(std::optional<Names> kept,
                           FindQuarantined(storage, checkpoint_dir, names));
  if (!kept.has_value()) return absl::OkStatus();
  for (const DataFile& file : committed.files()) kept->insert(file.path());
  const std::vector<std::string> others = FindData(names, *kept);
  if (others.empty()) return absl::OkStatus();
  // They can try to commit as soon as this checkpoint is deleted or set aside.
  if (!storage.RenamesDirectories()) {
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, checkpoint_dir));
  }
  return storage.DeleteFiles(checkpoint_dir, others);
}

absl::Status TakeBack(Storage& storage, std::string_view checkpoint_dir,
                      std::string_view manifest_bytes) {
  const std::string path = ManifestPath(checkpoint_dir);
  if (!storage.RenamesDirectories()) {
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, checkpoint_dir));
    const absl::Status taken = storage.Exchange(path, manifest_bytes, MakeTombstone(), nullptr);
    return absl::IsAborted(taken) ? absl::OkStatus() : taken;
  }
  const absl::StatusOr<std::string> there = ReadAll(storage, path, kMaxManifestBytes);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(there.status());
  if (*there != manifest_bytes) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(storage.Delete(path));
  return storage.SyncDirectory(checkpoint_dir);
}

absl::StatusOr<std::string> QuarantineManifest(Storage& storage, std::string_view checkpoint_dir,
                                               std::string_view word, const std::string* expected) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(checkpoint_dir));
  const std::string from = ManifestPath(checkpoint_dir);
  TESSERA_ASSIGN_OR_RETURN(const std::string contents, ReadAll(storage, from, kMaxManifestBytes));
  if (expected != nullptr && contents != *expected) {
    return absl::AbortedError(absl::StrCat(storage.Describe(from), " has been replaced"));
  }
  std::string to;
  for (const std::string& name : names) {
    if (!IsQuarantinedName(name)) continue;
    const std::string path = JoinPath(checkpoint_dir, name);
    const absl::StatusOr<std::string> copy = ReadAll(storage, path, kMaxManifestBytes);
    if (copy.ok() && *copy == contents) to = path;
  }
  if (to.empty()) {
    to = JoinPath(checkpoint_dir, FreeName(names, kManifestFileName, word));
    TESSERA_RETURN_IF_ERROR(storage.Publish(to, contents, nullptr));
  }
  // A transfer may have damaged what was read, and the copy with it.
  TESSERA_ASSIGN_OR_RETURN(const std::string again, ReadAll(storage, from, kMaxManifestBytes));
  if (again != contents) {
    return absl::UnavailableError(absl::StrCat(storage.Describe(from), ": reads differ"));
  }
  // A deletion whose repetition arrives late could delete what was committed since.
  TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage, checkpoint_dir));
  const absl::Status replaced = storage.Exchange(from, contents, MakeTombstone(), nullptr);
  if (!absl::IsFailedPrecondition(replaced)) {
    TESSERA_RETURN_IF_ERROR(replaced);
    return to;
  }
  // The store has no conditional replacement, and so no tombstone could be replaced either.
  TESSERA_RETURN_IF_ERROR(storage.Delete(from));
  TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(checkpoint_dir));
  return to;
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
  for (const CheckpointInfo& dir : directories) {
    if (dir.step >= (*dir.committed ? oldest_kept : newest)) continue;
    const RemovalLock lock(storage, dir.directory);
    if (lock.refused()) continue;
    first_error.Update(RemoveStepDirectory(storage, dir).status());
    removed = true;
  }
  if (removed) first_error.Update(storage.SyncDirectory(root));
  return first_error;
}

}  // namespace tessera::ckpt
