#include "checkpoint/directory/directory.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kStepPrefix = "step-";

// Names of data files, perhaps below a rolling slot:
// "step-00000042/model-00001-of-00004-0123abcd.safetensors".
constexpr char kDataFilePattern[] =
    "([^/]+/|rolling-[01]/[0-9a-f]{8}/)?step-[0-9]{8,}[^/]*/"
    "[a-z]+-[0-9]{5,}-of-[0-9]{5,}-[0-9a-f]{8}\\.safetensors";

// No manifest begins like this: the eighth byte of its magic is a line feed.
constexpr std::string_view kTombstone = "TESSERA tombstone ";

// Lists the checkpoints that a reader who asked for another name may have meant.
std::string DescribeNeighbours(Storage& storage, std::string_view checkpoint_dir) {
  const std::string_view root = FolderOf(checkpoint_dir);
  for (std::string_view place : {checkpoint_dir, root}) {
    const auto directories = ListStepDirectories(storage, place);
    if (!directories.ok()) continue;
    std::vector<std::string> names;
    for (const CheckpointInfo& dir : *directories) {
      if (dir.committed) names.push_back(StepDirectoryName(dir.step));
    }
    if (names.empty()) continue;
    if (names.size() > 10) names.erase(names.begin(), names.end() - 10);
    return absl::StrCat("checkpoints in ", storage.Describe(place), ": ",
                        absl::StrJoin(names, ", "));
  }
  return absl::StrCat("no checkpoint in ", storage.Describe(root), " either");
}

// Returns "c" of "a/b/c" and of "a/b/c/".
std::string LastComponent(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

// Returns the codec's error, with the file's full path instead of its name alone.
absl::Status WithPath(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string file_name = absl::StrCat(std::string(kManifestFileName), ": ");
  return WithMessage(status,
                     absl::StrCat(path, ": ", absl::StripPrefix(status.message(), file_name)));
}

// Reads the bytes of a committed manifest, as many as its header states. NotFound lists the
// existing checkpoints.
absl::StatusOr<std::string> ReadManifestBytes(Storage& storage, std::string_view checkpoint_dir) {
  const std::string path = JoinPath(checkpoint_dir, kManifestFileName);
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(absl::StrCat("no committed checkpoint in ",
                                            storage.Describe(checkpoint_dir), " (",
                                            std::string(kManifestFileName), " is missing); ",
                                            DescribeNeighbours(storage, checkpoint_dir)));
  }
  // There is a pipe in its place.
  if (absl::IsInvalidArgument(file.status())) return absl::DataLossError(file.status().message());
  TESSERA_RETURN_IF_ERROR(file.status());
  // Reads and allocates no more than a complete header states.
  const uint64_t size_bytes = (*file)->size_bytes();
  std::string bytes(std::min<uint64_t>(size_bytes, kManifestHeaderBytes), '\0');
  TESSERA_RETURN_IF_ERROR((*file)->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  if (IsTombstone(bytes)) {
    return absl::NotFoundError(
        absl::StrCat("no committed checkpoint in ", storage.Describe(checkpoint_dir),
                     " (a save there was discarded before it was complete); ",
                     DescribeNeighbours(storage, checkpoint_dir)));
  }
  TESSERA_RETURN_IF_ERROR(WithPath(storage.Describe(path), CheckManifestHeader(bytes, size_bytes)));
  bytes.resize(size_bytes);
  TESSERA_RETURN_IF_ERROR(
      (*file)->ReadAt(kManifestHeaderBytes,
                      std::as_writable_bytes(std::span(bytes)).subspan(kManifestHeaderBytes)));
  return bytes;
}

}  // namespace

OpenStorageOptions ForSaving(OpenStorageOptions options) {
  options.create_root = true;
  options.own_uploads = kDataFilePattern;
  return options;
}

std::string_view FolderOf(std::string_view path) {
  return path.find('/') == path.npos ? std::string_view() : path.substr(0, path.rfind('/'));
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && !name.empty()) path += '/';
  path += name;
  return path;
}

std::string StepDirectoryName(int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kStepPrefix) + digits;
}

std::optional<int64_t> ParseStepDirectoryName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (StepDirectoryName(step) != name) return std::nullopt;
  return step;
}

absl::StatusOr<std::vector<std::string>> ListFolders(Storage& storage, std::string_view directory) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, ListIfThere(storage, directory));
  std::erase_if(names, [](const std::string& name) { return !name.ends_with('/'); });
  for (std::string& name : names) name.pop_back();
  return names;
}

absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListIfThere(storage, checkpoint_dir));
  if (std::ranges::find(names, kManifestFileName) == names.end()) return false;
  const bool may_be_fenced = std::ranges::find(names, kFencedFileName) != names.end();
  const bool has_quarantined = std::ranges::any_of(names, IsQuarantinedName);
  if (!may_be_fenced && !has_quarantined) return true;
  const absl::StatusOr<std::string> bytes =
      ReadAll(storage, JoinPath(checkpoint_dir, kManifestFileName), kMaxManifestBytes);
  if (absl::IsNotFound(bytes.status())) return false;
  // Damaged: a reader finds that out.
  if (absl::IsDataLoss(bytes.status()) || absl::IsResourceExhausted(bytes.status())) return true;
  TESSERA_RETURN_IF_ERROR(bytes.status());
  if (IsTombstone(*bytes)) return false;
  for (const std::string& name : names) {
    if (!IsQuarantinedName(name)) continue;
    // The same bytes: its quarantine was interrupted.
    const absl::StatusOr<std::string> copy =
        ReadAll(storage, JoinPath(checkpoint_dir, name), kMaxManifestBytes);
    if (copy.ok() && *copy == *bytes) return false;
    const bool other = copy.ok() || absl::IsNotFound(copy.status()) ||
                       absl::IsDataLoss(copy.status()) || absl::IsResourceExhausted(copy.status());
    if (!other) return copy.status();
  }
  return true;
}

absl::Status CheckDataFile(Storage& storage, std::string_view path, uint64_t size_bytes) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  if (file.ok() && (*file)->size_bytes() == size_bytes) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat(storage.Describe(path), ": written by this save with ", size_bytes, " bytes, ",
                   file.ok() ? absl::StrCat("now it has ", (*file)->size_bytes())
                             : std::string("now it is gone"),
                   ": another process writes or deletes there"));
}

absl::StatusOr<Manifest> ReadManifest(Storage& storage, std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadManifestBytes(storage, checkpoint_dir));
  const std::string path = storage.Describe(JoinPath(checkpoint_dir, kManifestFileName));
  const bool is_translation = storage.Traits().is_translation;
  absl::StatusOr<Manifest> manifest =
      DecodeManifest(bytes, is_translation ? Checksums::kOptional : Checksums::kRequired);
  if (!manifest.ok()) return WithPath(path, manifest.status());
  // The name of a foreign folder says nothing.
  if (is_translation) return manifest;
  const std::string name = LastComponent(checkpoint_dir.empty() ? storage.Describe(checkpoint_dir)
                                                                : std::string(checkpoint_dir));
  const std::optional<int64_t> step = ParseStepDirectoryName(name);
  if (step.has_value() && *step != manifest->trainer().step()) {
    return absl::DataLossError(absl::StrCat(path, ": the manifest has step ",
                                            manifest->trainer().step(),
                                            ", but its directory is named ", name));
  }
  return manifest;
}

absl::StatusOr<std::vector<CheckpointInfo>> ListStepDirectories(Storage& storage,
                                                                std::string_view root) {
  std::vector<CheckpointInfo> found;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolders(storage, root));
  for (const std::string& name : names) {
    const std::optional<int64_t> step = ParseStepDirectoryName(name);
    if (!step) continue;
    std::string path = JoinPath(root, name);
    const absl::StatusOr<bool> committed = IsCommitted(storage, path);
    found.push_back({.step = *step,
                     .directory = std::move(path),
                     .committed = committed.value_or(false),
                     .readable = committed.status()});
  }
  std::ranges::sort(found, {}, &CheckpointInfo::step);
  return found;
}

absl::Status MarkAsFenced(Storage& storage, std::string_view checkpoint_dir) {
  const absl::Status marked = storage
                                  .Write(JoinPath(checkpoint_dir, kFencedFileName),
                                         "manifest.pb may be a tombstone: see FORMAT.md.\n", {})
                                  .status();
  return absl::IsAlreadyExists(marked) ? absl::OkStatus() : marked;
}

std::string MakeTombstone() {
  return absl::StrCat(View(kTombstone), absl::ToUnixSeconds(absl::Now()), " ", RandomHex(16),
                      "\nA save to this directory was discarded before it was complete.\n");
}

bool IsTombstone(std::string_view manifest_bytes) { return manifest_bytes.starts_with(kTombstone); }

int64_t TombstoneTime(std::string_view tombstone) {
  tombstone.remove_prefix(kTombstone.size());
  int64_t seconds = 0;
  return absl::SimpleAtoi(std::string(tombstone.substr(0, tombstone.find(' '))), &seconds) ? seconds
                                                                                           : 0;
}

bool IsQuarantinedName(std::string_view name) {
  if (!name.starts_with(kManifestFileName)) return false;
  const std::string_view suffix = name.substr(kManifestFileName.size());
  return suffix.starts_with('.') && !suffix.starts_with(".tmp") && name != kFencedFileName;
}

absl::StatusOr<std::optional<VersionedContents>> ReadInPlace(Storage& storage,
                                                             std::string_view checkpoint_dir) {
  absl::StatusOr<VersionedContents> there =
      storage.Read(JoinPath(checkpoint_dir, kManifestFileName), kMaxManifestBytes);
  if (absl::IsNotFound(there.status())) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(there.status());
  return *std::move(there);
}

// The header has the length and the checksum of the rest.
std::string ManifestIdentity(std::string_view manifest_bytes) {
  return std::string(manifest_bytes.substr(0, kManifestHeaderBytes));
}

absl::StatusOr<std::string> ManifestIdentity(Storage& storage, std::string_view checkpoint_dir) {
  const auto read = [&]() -> absl::StatusOr<std::string> {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                             storage.Open(JoinPath(checkpoint_dir, kManifestFileName)));
    std::string bytes(std::min<uint64_t>(file->size_bytes(), kManifestHeaderBytes), '\0');
    TESSERA_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
    return ManifestIdentity(bytes);
  };
  absl::StatusOr<std::string> identity = read();
  if (absl::IsNotFound(identity.status())) return "";
  // Not a file, or one that the disk cannot return.
  if (absl::IsInvalidArgument(identity.status()) || absl::IsDataLoss(identity.status())) {
    return "damaged";
  }
  return identity;
}

absl::StatusOr<std::optional<VersionedContents>> ReadTombstone(Storage& storage,
                                                               std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<VersionedContents> there,
                           ReadInPlace(storage, checkpoint_dir));
  if (!there.has_value() || IsTombstone(there->contents)) return there;
  return absl::AlreadyExistsError(absl::StrCat(
      storage.Describe(JoinPath(checkpoint_dir, kManifestFileName)), " is no tombstone"));
}

}  // namespace tessera::ckpt
