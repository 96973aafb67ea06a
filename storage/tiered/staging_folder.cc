#include "storage/tiered/staging_folder.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "base/system_memory.h"
#include "base/text.h"
#include "storage/posix_storage.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

absl::Status MarkIfEmpty(Storage& storage, const std::string& path) {
  const auto is_marked = [&] { return storage.Open(kStagingMarker).ok(); };
  if (is_marked()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  if (names.empty()) {
    return WriteAll(storage, kStagingMarker,
                    "Copies of files on their way to another storage. Programs empty this "
                    "folder.\n");
  }
  // Another process may have been faster.
  if (is_marked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is not empty and no staging folder (", std::string(kStagingMarker),
                   " is missing): its files would be deleted; remove it, or name another folder"));
}

// Returns whether `folder` is `inner` or one of the folders above it. Both without links.
bool IsAbove(const fs::path& folder, const fs::path& inner) {
  for (fs::path path = inner;; path = path.parent_path()) {
    std::error_code ignored;
    // One folder may have two names for other reasons than links.
    if (path == folder || fs::equivalent(path, folder, ignored)) return true;
    if (path == path.parent_path()) return false;
  }
}

// Returns the address of the store that OpenStorage() opens for a name without one. Empty for
// Amazon's, and for one that a profile names.
std::string Endpoint(const OpenStorageOptions& options) {
  if (!options.s3_endpoint.empty()) return options.s3_endpoint;
  for (const char* const name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (std::string value = EnvironmentVariable(name); !value.empty()) return value;
  }
  return "";
}

absl::StatusOr<fs::path> WithoutLinks(const std::string& path) {
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot find out where ", path, " is: ", error.message()));
  }
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

absl::Status ForgetBelow(Storage& staging, const std::string& directory, std::string_view kept) {
  absl::StatusOr<std::vector<std::string>> names = staging.List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(names.status());
  absl::Status first_error;
  for (std::string_view name : *names) {
    const bool is_directory = name.ends_with('/');
    if (is_directory) name.remove_suffix(1);
    const std::string path = absl::StrCat(directory, directory.empty() ? "" : "/", View(name));
    absl::Status status;
    if (path == kept || path == kStagingMarker) {
      continue;
    } else if (is_directory && kept.starts_with(path + "/")) {
      status = ForgetBelow(staging, path, kept);
    } else {
      status = staging.DeleteTree(path);
    }
    // Another process of this machine may have been faster.
    if (!absl::IsNotFound(status)) first_error.Update(status);
  }
  return first_error;
}

}  // namespace

std::string LocalFolderFor(std::string_view name, const OpenStorageOptions& options,
                           const std::string& parent, std::string_view suffix) {
  const std::optional<std::string> path = LocalPathOfName(name);
  const std::string place =
      path.has_value() ? fs::absolute(*path).string() : Endpoint(options) + std::string(name);
  return absl::StrCat(parent.empty() ? "/dev/shm" : parent, "/tessera-", geteuid(), "-",
                      absl::Hex(Crc32c(place), absl::kZeroPad8), View(suffix));
}

absl::StatusOr<std::unique_ptr<Storage>> OpenStagingFolder(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                           OpenPosixStorage(path, {.create_root = true, .private_to = geteuid()}));
  TESSERA_RETURN_IF_ERROR(MarkIfEmpty(*storage, path));
  return storage;
}

std::function<bool(uint64_t size_bytes)> RoomOfStagingFolder(const std::string& path,
                                                             std::function<uint64_t()> available) {
  struct statfs found = {};
  const bool in_memory = statfs(path.c_str(), &found) == 0 &&
                         (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC);
  if (!in_memory) return nullptr;
  if (!available) available = AvailableMemoryBytes;
  return [available = std::move(available)](uint64_t size_bytes) {
    return size_bytes <= available() / 2;
  };
}

void KeepStagingMarker(Storage& storage) {
  const std::optional<std::string> marker = storage.LocalPath(kStagingMarker);
  if (marker.has_value()) utimensat(AT_FDCWD, marker->c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

absl::Status DeleteStagedFilesBut(Storage& staging, std::string_view kept) {
  KeepStagingMarker(staging);
  return ForgetBelow(staging, "", kept);
}

void RemoveStagingFolder(Storage& storage) {
  const std::optional<std::string> path = storage.LocalPath("");
  const auto names = storage.List("");
  if (!path.has_value() || !names.ok() || *names != std::vector{std::string(kStagingMarker)}) {
    return;
  }
  storage.Delete(kStagingMarker).IgnoreError();
  rmdir(path->c_str());
}

absl::StatusOr<bool> FoldersOverlap(const std::string& a, const std::string& b) {
  TESSERA_ASSIGN_OR_RETURN(const fs::path first, WithoutLinks(a));
  TESSERA_ASSIGN_OR_RETURN(const fs::path second, WithoutLinks(b));
  return IsAbove(first, second) || IsAbove(second, first);
}

}  // namespace tessera
