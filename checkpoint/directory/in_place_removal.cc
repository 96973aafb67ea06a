#include "checkpoint/directory/in_place_removal.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/directory/fence.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt::internal {
namespace {

// After that long, no request can be on its way any more: an object store refuses one that was
// signed a quarter of an hour ago.
constexpr absl::Duration kTombstoneLife = absl::Hours(24);

constexpr int kAttemptsToFence = 5;

}  // namespace

std::string ManifestPath(std::string_view dir) { return JoinPath(dir, kManifestFileName); }

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

absl::StatusOr<std::vector<std::string>> ListIfThere(Storage& storage, std::string_view dir) {
  absl::StatusOr<std::vector<std::string>> names = storage.List(dir);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

std::string FreeName(const std::vector<std::string>& names, std::string_view name,
                     std::string_view word) {
  const std::string first = absl::StrCat(std::string(name), ".", std::string(word));
  std::string candidate = first;
  for (int number = 2; Contains(names, candidate) || Contains(names, candidate + "/"); ++number) {
    candidate = absl::StrCat(first, "-", number);
  }
  return candidate;
}

absl::StatusOr<std::optional<InPlaceRemoval::Names>> InPlaceRemoval::FindQuarantined(
    std::string_view dir, const std::vector<std::string>& names) {
  Names quarantined;
  for (const std::string& name : names) {
    if (!IsQuarantinedName(name)) continue;
    quarantined.insert(name);
    const absl::StatusOr<std::string> bytes =
        ReadAll(storage_, JoinPath(dir, name), kMaxManifestBytes);
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
      quarantined.insert(slash == std::string::npos ? file.path()
                                                    : file.path().substr(0, slash + 1));
    }
  }
  return quarantined;
}

std::vector<std::string> InPlaceRemoval::FindData(const std::vector<std::string>& names,
                                                  const Names& quarantined) {
  std::vector<std::string> data;
  for (const std::string& name : names) {
    const bool is_data =
        name != kManifestFileName && name != kFencedFileName && !name.ends_with('/');
    if (is_data && !quarantined.contains(name)) data.push_back(name);
  }
  return data;
}

absl::StatusOr<bool> InPlaceRemoval::Fence(std::string_view dir) {
  TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, dir));
  const std::string path = ManifestPath(dir);
  for (int i = 0; i < kAttemptsToFence; ++i) {
    const absl::StatusOr<VersionedContents> there = storage_.Read(path, kMaxManifestBytes);
    absl::Status fenced;
    if (absl::IsNotFound(there.status())) {
      fenced = storage_.Write(path, MakeTombstone(), {}).status();
    } else {
      TESSERA_RETURN_IF_ERROR(there.status());
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

absl::Status InPlaceRemoval::ForgetFence(std::string_view dir,
                                         const std::vector<std::string>& names) {
  if (!Contains(names, kFencedFileName)) return absl::OkStatus();
  if (Contains(names, kManifestFileName)) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> tombstone,
                             ReadTombstone(storage_, dir));
    if (tombstone.has_value()) {
      const absl::Time made = absl::FromUnixSeconds(TombstoneTime(tombstone->contents));
      if (absl::Now() - made < kTombstoneLife) return absl::OkStatus();
    }
  }
  // A tombstone without the other file would look like a manifest.
  const absl::Status deleted = storage_.Delete(ManifestPath(dir));
  if (!absl::IsNotFound(deleted)) TESSERA_RETURN_IF_ERROR(deleted);
  return storage_.DeleteFiles(dir, {std::string(kFencedFileName)});
}

absl::StatusOr<Leftovers> InPlaceRemoval::FenceLeftovers(std::string_view dir,
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

absl::StatusOr<bool> InPlaceRemoval::DeleteInPlace(const CheckpointInfo& dir,
                                                   const std::vector<std::string>& names,
                                                   const Names& quarantined) {
  const std::vector<std::string> data = FindData(names, quarantined);
  if (*dir.committed) {
    TESSERA_RETURN_IF_ERROR(Uncommit(dir.directory, names, quarantined));
  } else if (data.empty()) {
    TESSERA_RETURN_IF_ERROR(ForgetFence(dir.directory, names));
    return true;
  } else {
    TESSERA_ASSIGN_OR_RETURN(const bool fenced, Fence(dir.directory));
    if (!fenced) return false;
  }
  TESSERA_RETURN_IF_ERROR(storage_.DeleteFiles(dir.directory, data));
  return true;
}

absl::Status InPlaceRemoval::DeleteOtherAttempts(std::string_view checkpoint_dir,
                                                 const Manifest& committed) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_.List(checkpoint_dir));
  TESSERA_ASSIGN_OR_RETURN(std::optional<Names> kept, FindQuarantined(checkpoint_dir, names));
  if (!kept.has_value()) return absl::OkStatus();
  for (const DataFile& file : committed.files()) kept->insert(file.path());
  const std::vector<std::string> others = FindData(names, *kept);
  if (others.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(FenceOthers(checkpoint_dir));
  return storage_.DeleteFiles(checkpoint_dir, others);
}

}  // namespace tessera::ckpt::internal
