#include "checkpoint/directory/removal.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/quarantine.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kDiscarded = ".discarded-";

// After that long, no request can be on its way any more: an object store refuses one that was
// signed a quarter of an hour ago.
constexpr absl::Duration kTombstoneLife = absl::Hours(24);

constexpr int kAttemptsToFence = 5;

using Names = std::set<std::string>;

std::string ManifestPath(std::string_view dir) { return JoinPath(dir, kManifestFileName); }

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string DiscardedName(std::string_view dir) {
  return absl::StrCat(View(dir), View(kDiscarded), RandomHex(8));
}

absl::Status UnlessNotFound(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// What both ways of removal do in a directory that keeps its name: in an object store, and in a
// file system if something in the directory is quarantined.
class InPlaceRemoval : public Removal {
 public:
  explicit InPlaceRemoval(Storage& storage) : storage_(storage) {}

  absl::StatusOr<Leftovers> DiscardLeftovers(std::string_view checkpoint_dir) override {
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage_, checkpoint_dir));
    if (committed) return Leftovers::kCommitted;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage_, checkpoint_dir));
    return DiscardListed(checkpoint_dir, names);
  }

  absl::StatusOr<bool> Delete(const CheckpointInfo& dir,
                              const std::optional<std::string>& judged) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage_, dir.directory));
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Names> quarantined,
                             FindQuarantined(storage_, dir.directory, names));
    if (!quarantined.has_value()) return false;
    if (!dir.committed) return DeleteUncommitted(dir.directory, names, *quarantined);
    if (judged.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const std::string there, ManifestIdentity(storage_, dir.directory));
      if (there != *judged) return false;
    }
    return DeleteCommitted(dir.directory, names, *quarantined, judged);
  }

  absl::Status DeleteOtherAttempts(std::string_view checkpoint_dir, const Manifest& committed,
                                   const std::vector<std::string>& names) override {
    if (Contains(names, kManifestSignatureFileName)) {  // of the manifest that was replaced
      const std::string signature(kManifestSignatureFileName);
      TESSERA_RETURN_IF_ERROR(storage_.DeleteFiles(checkpoint_dir, {signature}));
    }
    TESSERA_ASSIGN_OR_RETURN(std::optional<Names> kept,
                             FindQuarantined(storage_, checkpoint_dir, names));
    if (!kept.has_value()) return absl::OkStatus();
    for (const DataFile& file : committed.files()) kept->insert(file.path());
    const std::vector<std::string> others = FindData(names, *kept);
    if (others.empty()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(FenceOthers(checkpoint_dir));
    absl::Status deleted;
    UnlessRead(storage_, checkpoint_dir,
               [&] { deleted = storage_.DeleteFiles(checkpoint_dir, others); });
    return deleted;
  }

  absl::Status DeleteAttempt(std::string_view checkpoint_dir, const Manifest& attempt) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             ListIfThere(storage_, checkpoint_dir));
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Names> quarantined,
                             FindQuarantined(storage_, checkpoint_dir, names));
    for (const DataFile& file : attempt.files()) {
      if (!quarantined.has_value() || quarantined->contains(file.path())) continue;
      storage_.Delete(JoinPath(checkpoint_dir, file.path())).IgnoreError();
    }
    return absl::OkStatus();
  }

 protected:
  // Deletes a checkpoint whose manifest is `judged`, but not what is quarantined beside it.
  // `names`: what is in the directory.
  virtual absl::StatusOr<bool> DeleteCommitted(std::string_view dir,
                                               const std::vector<std::string>& names,
                                               const Names& quarantined,
                                               const std::optional<std::string>& judged) = 0;
  // Replaces a manifest that does not count as committed, so that no attempt that has begun can
  // commit. Aborted if it has another version by now.
  virtual absl::Status ReplaceByTombstone(const std::string& path, const std::string& version) = 0;
  // Called before files of other attempts are deleted beside a committed checkpoint.
  virtual absl::Status FenceOthers(std::string_view dir) = 0;

  // Makes a directory ready for another save. `names`: what is in it. Here, it keeps its name.
  virtual absl::StatusOr<Leftovers> DiscardListed(std::string_view dir,
                                                  const std::vector<std::string>& names) {
    if (names.empty()) return Leftovers::kNone;
    if (!Contains(names, kManifestFileName)) return Leftovers::kKept;
    const absl::Status tombstone = ReadTombstone(storage_, dir).status();
    if (absl::IsAlreadyExists(tombstone)) {
      // Its quarantine was interrupted, unless the manifest was committed just now.
      TESSERA_ASSIGN_OR_RETURN(const bool fenced, Fence(dir));
      return fenced ? Leftovers::kKept : Leftovers::kCommitted;
    }
    TESSERA_RETURN_IF_ERROR(tombstone);
    return Leftovers::kKept;
  }

  // Deletes an attempt that was not committed, but not what is quarantined.
  virtual absl::StatusOr<bool> DeleteUncommitted(std::string_view dir,
                                                 const std::vector<std::string>& names,
                                                 const Names& quarantined) {
    const std::vector<std::string> data = FindData(names, quarantined);
    if (data.empty()) {
      TESSERA_RETURN_IF_ERROR(ForgetFence(dir, names));
      return true;
    }
    TESSERA_ASSIGN_OR_RETURN(const bool fenced, Fence(dir));
    if (fenced) TESSERA_RETURN_IF_ERROR(storage_.DeleteFiles(dir, data));
    return fenced;
  }

  Storage& storage_;

 private:
  // Puts a new tombstone in the manifest's place, so that no attempt that has begun can commit.
  // False if one has committed, or others keep changing it.
  absl::StatusOr<bool> Fence(std::string_view dir) {
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, dir));
    const std::string path = ManifestPath(dir);
    for (int i = 0; i < kAttemptsToFence; ++i) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> there,
                               ReadInPlace(storage_, dir));
      absl::Status fenced;
      if (!there.has_value()) {
        fenced = storage_.Write(path, MakeTombstone(), {}).status();
      } else {
        TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage_, dir));
        if (committed) return false;
        fenced = ReplaceByTombstone(path, there->version);
      }
      if (fenced.ok()) {
        // Another process may just have found that an old fence can go.
        TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, dir));
        return true;
      }
      if (!absl::IsAlreadyExists(fenced) && !absl::IsAborted(fenced)) return fenced;
    }
    return false;
  }

  // Deletes the remains of a fence that is no longer needed.
  absl::Status ForgetFence(std::string_view dir, const std::vector<std::string>& names) {
    if (!Contains(names, kFencedFileName)) return absl::OkStatus();
    if (Contains(names, kManifestFileName)) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> tombstone,
                               ReadTombstone(storage_, dir));
      if (tombstone.has_value()) {
        const absl::Time made = absl::FromUnixSeconds(TombstoneTime(tombstone->contents));
        if (absl::Now() - made < kTombstoneLife) return absl::OkStatus();
        // Deleted before the other file: a tombstone alone would look like a manifest.
        TESSERA_RETURN_IF_ERROR(storage_.DeleteVersion(ManifestPath(dir), tombstone->version));
      }
    }
    return storage_.DeleteFiles(dir, {std::string(kFencedFileName)});
  }
};

// In a storage that renames directories.
class RenamingRemoval final : public InPlaceRemoval {
 public:
  using InPlaceRemoval::InPlaceRemoval;

  absl::StatusOr<bool> TakeBack(std::string_view checkpoint_dir,
                                std::string_view manifest_bytes) override {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> there,
                             ReadInPlace(storage_, checkpoint_dir));
    if (!there.has_value() || there->contents != manifest_bytes) return there.has_value();
    TESSERA_ASSIGN_OR_RETURN(
        const std::string discarded,
        RenameUnless(IsAnother(ManifestIdentity(manifest_bytes)), checkpoint_dir));
    if (discarded.empty()) return IsCommitted(storage_, checkpoint_dir);
    const absl::Status taken = Uncommit(discarded, checkpoint_dir);
    if (absl::IsNotFound(taken)) return false;
    TESSERA_RETURN_IF_ERROR(taken);
    TESSERA_RETURN_IF_ERROR(GiveBack(discarded, checkpoint_dir));
    return true;
  }

  absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir, std::string_view word,
                                         const std::string* expected) override {
    const auto check = [&](std::string_view dir) -> absl::Status {
      if (expected == nullptr) return absl::OkStatus();
      TESSERA_ASSIGN_OR_RETURN(const std::string manifest,
                               ReadAll(storage_, ManifestPath(dir), kMaxManifestBytes));
      if (manifest == *expected) return absl::OkStatus();
      return absl::AbortedError(
          absl::StrCat(storage_.Describe(checkpoint_dir), " has been replaced"));
    };
    TESSERA_RETURN_IF_ERROR(check(checkpoint_dir));
    const std::string_view parent = FolderOf(checkpoint_dir);
    const std::string_view name = checkpoint_dir.substr(parent.empty() ? 0 : parent.size() + 1);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> siblings, storage_.List(parent));
    std::string to = JoinPath(parent, FreeQuarantinedName(siblings, name, word));
    TESSERA_RETURN_IF_ERROR(storage_.Rename(checkpoint_dir, to));
    // Another process may have replaced the checkpoint before the rename: it gets its name back.
    const absl::Status is_the_same = check(to);
    if (!is_the_same.ok()) TESSERA_RETURN_IF_ERROR(storage_.Rename(to, checkpoint_dir));
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(parent));
    if (!is_the_same.ok()) return is_the_same;
    return to;
  }

  bool frees_names() const override { return true; }

 private:
  absl::StatusOr<Leftovers> DiscardListed(std::string_view dir,
                                          const std::vector<std::string>& names) override {
    if (HasQuarantined(names)) return ReuseDirectory(dir, names);
    const absl::Status renamed = storage_.Rename(dir, DiscardedName(dir));
    if (absl::IsUnimplemented(renamed)) return names.empty() ? Leftovers::kNone : Leftovers::kKept;
    TESSERA_RETURN_IF_ERROR(UnlessNotFound(renamed));
    SettleDiscarded(storage_, FolderOf(dir)).IgnoreError();  // what stays is in no save's way
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage_, dir));
    return committed ? Leftovers::kCommitted : Leftovers::kNone;
  }

  absl::StatusOr<bool> DeleteCommitted(std::string_view dir, const std::vector<std::string>& names,
                                       const Names& quarantined,
                                       const std::optional<std::string>& judged) override {
    TESSERA_ASSIGN_OR_RETURN(const std::string discarded, RenameUnless(IsAnother(judged), dir));
    if (discarded.empty()) return false;
    const absl::Status taken = Uncommit(discarded, dir);
    if (absl::IsNotFound(taken)) {
      TESSERA_ASSIGN_OR_RETURN(const bool is_back, IsCommitted(storage_, dir));
      if (is_back) return false;
    } else {
      TESSERA_RETURN_IF_ERROR(taken);
    }
    if (quarantined.empty()) return DeleteDiscarded(discarded);
    absl::Status deleted = storage_.DeleteFiles(discarded, FindData(names, quarantined));
    deleted.Update(GiveBack(discarded, dir));
    TESSERA_RETURN_IF_ERROR(deleted);
    return true;
  }

  absl::StatusOr<bool> DeleteUncommitted(std::string_view dir,
                                         const std::vector<std::string>& names,
                                         const Names& quarantined) override {
    if (!quarantined.empty()) return InPlaceRemoval::DeleteUncommitted(dir, names, quarantined);
    const auto stays = [&](std::string_view discarded) { return IsCommitted(storage_, discarded); };
    TESSERA_ASSIGN_OR_RETURN(const std::string discarded, RenameUnless(stays, dir));
    return discarded.empty() ? false : DeleteDiscarded(discarded);
  }

  using Question = std::function<absl::StatusOr<bool>(std::string_view dir)>;

  // Returns whether a directory has another manifest than the `expected` one; false for any.
  Question IsAnother(const std::optional<std::string>& expected) {
    return [this, expected](std::string_view dir) -> absl::StatusOr<bool> {
      if (!expected.has_value()) return false;
      TESSERA_ASSIGN_OR_RETURN(const std::string there, ManifestIdentity(storage_, dir));
      return there != *expected;
    };
  }

  // Takes a directory out of the reach of other writers, and then looks whether it `stays`: it gets
  // its name back. Returns the new name, which another process may have deleted; "" if the
  // directory stays.
  absl::StatusOr<std::string> RenameUnless(const Question& stays, std::string_view dir) {
    const std::string discarded = DiscardedName(dir);
    TESSERA_RETURN_IF_ERROR(UnlessNotFound(storage_.Rename(dir, discarded)));
    const absl::StatusOr<bool> found = stays(discarded);
    if (found.ok() && !*found) return discarded;
    TESSERA_RETURN_IF_ERROR(GiveBack(discarded, dir));
    TESSERA_RETURN_IF_ERROR(found.status());
    return "";
  }

  // Deletes the manifest of a directory that was renamed, durably. NotFound if it has none: another
  // process may have given the directory its name back, with the manifest. After another error,
  // gives it back itself, so that a checkpoint that cannot be deleted does not stay hidden.
  absl::Status Uncommit(std::string_view discarded, std::string_view dir) {
    absl::Status deleted = storage_.Delete(ManifestPath(discarded));
    if (absl::IsNotFound(deleted)) return deleted;
    if (deleted.ok()) deleted = UnlessNotFound(storage_.SyncDirectory(discarded));
    if (!deleted.ok()) GiveBack(discarded, dir).IgnoreError();
    return deleted;
  }

  // Does nothing if another process has done so, or a later save has the name (SettleDiscarded()).
  absl::Status GiveBack(std::string_view discarded, std::string_view dir) {
    const absl::Status back = storage_.Rename(discarded, dir);
    if (absl::IsAlreadyExists(back) || absl::IsNotFound(back)) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(back);
    return storage_.SyncDirectory(FolderOf(dir));
  }

  // Another process may delete it at the same time.
  absl::StatusOr<bool> DeleteDiscarded(std::string_view discarded) {
    TESSERA_RETURN_IF_ERROR(UnlessNotFound(storage_.DeleteTree(discarded)));
    return true;
  }

  // Reuses a directory that was copied from an object store, whose late writers cannot reach this
  // one.
  absl::StatusOr<Leftovers> ReuseDirectory(std::string_view dir,
                                           const std::vector<std::string>& names) {
    TESSERA_ASSIGN_OR_RETURN(const Leftovers left, InPlaceRemoval::DiscardListed(dir, names));
    if (left == Leftovers::kKept && Contains(names, kManifestFileName)) {
      TESSERA_RETURN_IF_ERROR(storage_.Delete(ManifestPath(dir)));
    }
    return left;
  }

  // Replaces nothing: an existing file keeps others from committing.
  absl::Status ReplaceByTombstone(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status FenceOthers(std::string_view) override { return absl::OkStatus(); }
};

// In a storage that does not rename directories, such as an object store.
class FencingRemoval final : public InPlaceRemoval {
 public:
  using InPlaceRemoval::InPlaceRemoval;

  absl::StatusOr<bool> TakeBack(std::string_view checkpoint_dir,
                                std::string_view manifest_bytes) override {
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, checkpoint_dir));
    TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> there,
                             ReadInPlace(storage_, checkpoint_dir));
    if (!there.has_value() || there->contents != manifest_bytes) return true;
    const absl::Status taken = ReplaceByTombstone(ManifestPath(checkpoint_dir), there->version);
    if (!absl::IsAborted(taken)) TESSERA_RETURN_IF_ERROR(taken);
    return true;
  }

  // Copies the manifest and replaces it by a tombstone. Once the copy is there, the checkpoint is
  // no longer committed (IsCommitted); the next call completes one that was interrupted in between.
  absl::StatusOr<std::string> Quarantine(std::string_view checkpoint_dir, std::string_view word,
                                         const std::string* expected) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_.List(checkpoint_dir));
    const std::string from = ManifestPath(checkpoint_dir);
    TESSERA_ASSIGN_OR_RETURN(const VersionedContents manifest,
                             storage_.Read(from, kMaxManifestBytes));
    if (expected != nullptr && manifest.contents != *expected) {
      return absl::AbortedError(absl::StrCat(storage_.Describe(from), " has been replaced"));
    }
    // A transfer may have damaged what was read, and would damage the copy.
    TESSERA_ASSIGN_OR_RETURN(const std::string again, ReadAll(storage_, from, kMaxManifestBytes));
    if (again != manifest.contents) {
      return absl::UnavailableError(absl::StrCat(storage_.Describe(from), ": reads differ"));
    }
    std::string to;
    for (const std::string& name : names) {
      if (!IsQuarantinedName(name)) continue;
      const std::string path = JoinPath(checkpoint_dir, name);
      const absl::StatusOr<std::string> copy = ReadAll(storage_, path, kMaxManifestBytes);
      if (copy.ok() && *copy == manifest.contents) to = path;
    }
    if (to.empty()) {
      to = JoinPath(checkpoint_dir, FreeQuarantinedName(names, kManifestFileName, word));
      TESSERA_RETURN_IF_ERROR(storage_.Write(to, manifest.contents, {}).status());
    }
    if (Contains(names, kManifestSignatureFileName)) {
      constexpr uint64_t kMaxSignatureBytes = 4096;
      const std::string signature = JoinPath(checkpoint_dir, kManifestSignatureFileName);
      TESSERA_ASSIGN_OR_RETURN(const std::string signed_by,
                               ReadAll(storage_, signature, kMaxSignatureBytes));
      const std::string copy = JoinPath(
          checkpoint_dir, QuarantinedSignature(std::string_view(to).substr(to.rfind('/') + 1)));
      const absl::Status copied = storage_.Write(copy, signed_by, {}).status();
      if (!absl::IsAlreadyExists(copied)) TESSERA_RETURN_IF_ERROR(copied);
    }
    // A deletion whose repetition arrives late could delete what was committed since.
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, checkpoint_dir));
    const absl::Status replaced = ReplaceByTombstone(from, manifest.version);
    if (!absl::IsUnimplemented(replaced)) {
      TESSERA_RETURN_IF_ERROR(replaced);
      return to;
    }
    // The store has no conditional replacement, and so no tombstone could be replaced either.
    TESSERA_RETURN_IF_ERROR(storage_.DeleteVersion(from, manifest.version));
    return to;
  }

  bool frees_names() const override { return false; }

 private:
  absl::StatusOr<bool> DeleteCommitted(std::string_view dir, const std::vector<std::string>& names,
                                       const Names& quarantined,
                                       const std::optional<std::string>& judged) override {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> there,
                             ReadInPlace(storage_, dir));
    if (there.has_value()) {
      if (judged.has_value() && ManifestIdentity(there->contents) != *judged) return false;
      const absl::Status taken = Uncommit(dir, names, quarantined, *there);
      if (absl::IsAborted(taken)) return false;
      TESSERA_RETURN_IF_ERROR(taken);
      // A checkpoint that has replaced this one meanwhile may have a signature of the same name.
      TESSERA_ASSIGN_OR_RETURN(const bool was_replaced, IsCommitted(storage_, dir));
      if (was_replaced) return false;
    }
    TESSERA_RETURN_IF_ERROR(storage_.DeleteFiles(dir, FindData(names, quarantined)));
    return true;
  }

  // Replaces the manifest `there` by a tombstone if files in `names` say that a commit may still
  // arrive, of another attempt or a repeated one; deletes it otherwise. Aborted if it was replaced.
  absl::Status Uncommit(std::string_view dir, const std::vector<std::string>& names,
                        const Names& quarantined, const VersionedContents& there) {
    const absl::StatusOr<Manifest> manifest = DecodeManifest(there.contents);
    Names own = {std::string(kManifestSignatureFileName)};
    if (manifest.ok()) {
      for (const DataFile& file : manifest->files()) own.insert(file.path());
    }
    const bool alone =
        manifest.ok() && std::ranges::all_of(FindData(names, quarantined),
                                             [&](const auto& name) { return own.contains(name); });
    if (!alone || Contains(names, kFencedFileName)) {
      TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, dir));
      const absl::Status fenced = ReplaceByTombstone(ManifestPath(dir), there.version);
      // A store without conditional replacement cannot keep a repeated commit from arriving.
      if (!alone || !absl::IsUnimplemented(fenced)) return fenced;
    }
    return storage_.DeleteVersion(ManifestPath(dir), there.version);
  }
  absl::Status ReplaceByTombstone(const std::string& path, const std::string& version) override {
    return storage_.Write(path, MakeTombstone(), {.version = version}).status();
  }
  // They can try to commit as soon as the checkpoint beside them is deleted or quarantined.
  absl::Status FenceOthers(std::string_view dir) override { return MarkAsFenced(storage_, dir); }
};

// Deletes a directory that was renamed from `own`. If it has a manifest, it gets its name back, or
// the name `abandoned` if the step has been saved again.
absl::Status Settle(Storage& storage, const std::string& path, const std::string& own,
                    const std::string& abandoned) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> inside, ListIfThere(storage, path));
  TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage, path));
  absl::Status settled =
      committed || HasQuarantined(inside) ? storage.Rename(path, own) : storage.DeleteTree(path);
  if (committed && absl::IsAlreadyExists(settled)) {
    // A save that has the name may still fail, and free it.
    TESSERA_ASSIGN_OR_RETURN(const bool saved_again, IsCommitted(storage, own));
    if (saved_again) settled = storage.Rename(path, abandoned);
  }
  return absl::IsAlreadyExists(settled) ? absl::OkStatus() : UnlessNotFound(settled);
}

}  // namespace

std::unique_ptr<Removal> Removal::In(Storage& storage) {
  if (storage.Traits().renames_directories) return std::make_unique<RenamingRemoval>(storage);
  return std::make_unique<FencingRemoval>(storage);
}

absl::StatusOr<bool> RemoveUnlessRead(Storage& storage, Removal& removal, const CheckpointInfo& dir,
                                      const std::optional<std::string>& judged) {
  absl::StatusOr<bool> deleted = false;
  UnlessRead(storage, dir.directory, [&] { deleted = removal.Delete(dir, judged); });
  return deleted;
}

absl::Status SettleDiscarded(Storage& storage, std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolders(storage, folder));
  absl::Status first_error;
  for (const std::string& name : names) {
    const std::string step = name.substr(0, name.find(kDiscarded));
    if (step == name || !ParseStepDirectoryName(step).has_value()) continue;
    const std::string path = JoinPath(folder, name), own = JoinPath(folder, step);
    const std::string other = JoinPath(folder, FreeQuarantinedName(names, step, "abandoned"));
    // A process that deletes it holds its lock. With its name back, it would be incomplete.
    UnlessRead(storage, path, [&] { first_error.Update(Settle(storage, path, own, other)); });
  }
  return first_error;
}

}  // namespace tessera::ckpt
