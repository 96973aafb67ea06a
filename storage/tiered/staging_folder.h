#ifndef TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_
#define TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera {

// The file that marks a staging folder, in which everything else may be deleted.
inline constexpr std::string_view kStagingMarker = ".tessera-staging";

// Returns the path of a folder in `parent` (empty: in memory) for files of this user that belong to
// the storage that `name` names: "/dev/shm/tessera-1000-89abcdef" and `suffix`. Buckets of the same
// name in stores of different addresses (options.s3_endpoint, AWS_ENDPOINT_URL_S3,
// AWS_ENDPOINT_URL) have folders of their own.
std::string LocalFolderFor(std::string_view name, const OpenStorageOptions& options,
                           const std::string& parent, std::string_view suffix);

// Opens a folder of this machine as the staging tier of a TieredStorage: a private one (mode 0700,
// this user's, not a link), with its marker. Creates it if it is missing. FailedPrecondition for a
// folder that holds files but no marker, since they are somebody else's. Several processes may call
// this function at once.
absl::StatusOr<std::unique_ptr<Storage>> OpenStagingFolder(const std::string& path);

// Returns whether a staging folder takes a file of so many bytes, as TieredStorage asks. One in
// memory takes it only if half of the memory that `available` returns (null: of the system) is
// left. Null: any file.
std::function<bool(uint64_t size_bytes)> RoomOfStagingFolder(const std::string& path,
                                                             std::function<uint64_t()> available);

// Renews the marker's time, since programs that clean temporary folders delete old files first.
void KeepStagingMarker(Storage& storage);

// Deletes all staged files but those in the directory `kept`; "" keeps none. The marker of a
// staging folder stays. Tries all and returns the first error.
absl::Status DeleteStagedFilesBut(Storage& staging, std::string_view kept);

// Deletes the folder, once it holds nothing but its marker. Does nothing otherwise.
void RemoveStagingFolder(Storage& storage);

// Returns whether two paths of this machine are one folder, or one of them lies inside the other,
// also through symbolic links. Neither needs to exist. An error if a folder on the way cannot be
// read.
absl::StatusOr<bool> FoldersOverlap(const std::string& a, const std::string& b);

}  // namespace tessera

#endif  // TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_
