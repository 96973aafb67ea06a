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

// Returns "step-00000042". Steps sort as numbers, whatever their width.
std::string StepDirectoryName(int64_t step);

// Returns "a/b"; either part may be empty.
std::string JoinPath(std::string_view directory, std::string_view name);

// Returns the directory part of "a/b"; "" if the path has no directory.
std::string_view FolderOf(std::string_view path);

// Parses the result of StepDirectoryName(); nullopt for anything else.
std::optional<int64_t> ParseStepDirectoryName(std::string_view name);

// Returns whether the directory holds a committed manifest. False if the directory does not exist,
// for a tombstone (fence.h), and while the manifest is being quarantined.
absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir);

// Reads the bytes of a committed manifest, which pass CheckManifestBytes(). NotFound lists the
// existing checkpoints; DataLoss names the file.
absl::StatusOr<std::string> ReadManifestBytes(Storage& storage, std::string_view checkpoint_dir);

// Decodes the bytes of a manifest. DataLoss names the file; also if the directory is named for
// another step than the manifest's.
absl::StatusOr<Manifest> DecodeManifestOf(Storage& storage, std::string_view checkpoint_dir,
                                          std::string_view bytes);

// Checks that a data file that was just written is in its place, with its size. Aborted if another
// process has removed it or written to it.
absl::Status CheckDataFile(Storage& storage, std::string_view path, uint64_t size_bytes);

// Returns the directories of steps under `root`, ascending; none if the root does not exist. Reads
// no manifest.
absl::StatusOr<std::vector<CheckpointInfo>> ListStepDirectories(Storage& storage,
                                                                std::string_view root);

// Returns the committed step directories. Unreadable ones are left out and added to `unreadable`
// (may be null).
absl::StatusOr<std::vector<CheckpointInfo>> ListCommitted(
    Storage& storage, std::string_view root, std::vector<CheckpointInfo>* unreadable = nullptr);

// Returns the directories of saves that were started but not committed.
absl::StatusOr<std::vector<CheckpointInfo>> ListUncommitted(Storage& storage,
                                                            std::string_view root);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_
