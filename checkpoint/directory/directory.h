#ifndef TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_
#define TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_info.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// "step-00000042"; steps sort as numbers whatever their width.
std::string StepDirectoryName(int64_t step);

// "a/b"; either part may be empty.
std::string JoinPath(std::string_view directory, std::string_view name);

// The directory part of "a/b"; "" where the path has no directory.
std::string_view FolderOf(std::string_view path);

// Inverse of StepDirectoryName; nullopt for anything else.
std::optional<int64_t> ParseStepDirectoryName(std::string_view name);

// True if the directory holds a committed manifest; false also if the directory does not exist, for
// a tombstone (fence.h), and while the manifest is being quarantined.
absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir);

// The bytes of a committed manifest that passes CheckManifestBytes(). NotFound lists the existing
// checkpoints; DataLoss names the file.
absl::StatusOr<std::string> ReadManifestBytes(Storage& storage, std::string_view checkpoint_dir);

// Decodes those bytes. DataLoss names the file; also where the directory is named for another step
// than the manifest's.
absl::StatusOr<Manifest> DecodeManifestOf(Storage& storage, std::string_view checkpoint_dir,
                                          std::string_view bytes);

// Whether a data file that was just written is in its place, with its size. Aborted where another
// process has removed it or written to it.
absl::Status CheckDataFile(Storage& storage, std::string_view path, uint64_t size_bytes);

// The directories of steps under `root`, ascending; none if the root is not there. No manifest is
// read.
absl::StatusOr<std::vector<CheckpointInfo>> ListStepDirectories(Storage& storage,
                                                                std::string_view root);

// Those that are committed. Unreadable ones are left out and added to `unreadable` (may be null).
absl::StatusOr<std::vector<CheckpointInfo>> ListCommitted(
    Storage& storage, std::string_view root, std::vector<CheckpointInfo>* unreadable = nullptr);

// Those of saves that were started but not committed.
absl::StatusOr<std::vector<CheckpointInfo>> ListUncommitted(Storage& storage,
                                                            std::string_view root);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_
