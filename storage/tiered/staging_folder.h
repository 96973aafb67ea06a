#ifndef TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_
#define TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera {

// The file that says that a folder is a staging folder, so that everything else in it may be
// deleted.
inline constexpr std::string_view kStagingMarker = ".tessera-staging";

// Opens a folder of this machine as the staging tier of a TieredStorage: a private one (mode 0700,
// this user's, no link), with its marker. Created where it is missing. FailedPrecondition for a
// folder that holds files but no marker: they are somebody else's. Several processes may call this
// at once.
absl::StatusOr<std::unique_ptr<Storage>> OpenStagingFolder(const std::string& path);

// Makes the marker young again: programs that clean temporary folders delete old files first.
void KeepStagingMarker(Storage& storage);

// Deletes all staged copies but those of the files in the directory `kept`; "" keeps none. The
// marker of a staging folder stays. Tries all and returns the first error.
absl::Status ForgetCopiesBut(Storage& staging, std::string_view kept);

// Deletes the folder, once it holds nothing but its marker. Does nothing otherwise.
void RemoveStagingFolder(Storage& storage);

// Whether two paths of this machine are one folder, or one of them lies inside the other, also by
// way of symbolic links. Neither needs to exist. An error where a folder on the way cannot be read.
absl::StatusOr<bool> FoldersOverlap(const std::string& a, const std::string& b);

}  // namespace tessera

#endif  // TESSERA_STORAGE_TIERED_STAGING_FOLDER_H_
