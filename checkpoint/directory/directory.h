#ifndef TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_
#define TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "storage/checks.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Returns "step-00000042". Steps sort as numbers, whatever their width.
std::string StepDirectoryName(int64_t step);

// Returns the options for a storage to which checkpoints are saved: its root is created, and
// uploads that dead saves left behind are removed.
OpenStorageOptions ForSaving(OpenStorageOptions options);

// Returns "a/b"; either part may be empty.
std::string JoinPath(std::string_view directory, std::string_view name);

// Returns the directory part of "a/b"; "" if the path has no directory.
std::string_view FolderOf(std::string_view path);

// Parses the result of StepDirectoryName(); nullopt for anything else.
std::optional<int64_t> ParseStepDirectoryName(std::string_view name);

// Returns the names of the directories in a directory, without slashes; none if it does not exist.
absl::StatusOr<std::vector<std::string>> ListFolders(Storage& storage, std::string_view directory);

// Returns whether the directory holds a committed manifest. False if the directory does not exist,
// for a tombstone (below), and while the manifest is being quarantined.
absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir);

// Checks that a data file that was just written is in its place, with its size. Aborted if another
// process has removed it or written to it.
absl::Status CheckDataFile(Storage& storage, std::string_view path, uint64_t size_bytes);

// Returns the directories of steps under `root`, ascending; none if the root does not exist. Reads
// no manifest.
absl::StatusOr<std::vector<CheckpointInfo>> ListStepDirectories(Storage& storage,
                                                                std::string_view root);

// ---- Fences, and names in a checkpoint's directory other than its manifest and its data files.
//
// A tombstone takes a directory out of a late writer's reach in storages that cannot rename
// directories. Before the data of an attempt that may still commit is deleted, a tombstone takes
// the place of its manifest, so that the commit, which creates that object, fails. A later save of
// the step replaces the tombstone that it has found at its beginning (Storage::Write() on the
// condition of its version). Each deletion makes a new tombstone, which fences the attempts that
// found the one before.

// The name of the file that marks a fenced directory. In a directory with the mark, manifest.pb may
// be a tombstone, and must be read to know whether a checkpoint is committed. A commit may still
// arrive there, from another attempt, or from the committed one, which had to repeat its request.
inline constexpr std::string_view kFencedFileName = "manifest.pb.fenced";

absl::Status MarkAsFenced(Storage& storage, std::string_view checkpoint_dir);

// Returns a new tombstone, which differs from all others.
std::string MakeTombstone();

bool IsTombstone(std::string_view manifest_bytes);

// Returns when a tombstone was made, in seconds since 1970; 0 if that cannot be read.
int64_t TombstoneTime(std::string_view tombstone);

// Returns whether a name belongs to a quarantined manifest: "manifest.pb.damaged-2". Neither such a
// manifest nor the files that it names are deleted or replaced.
bool IsQuarantinedName(std::string_view name);

// Reads the manifest of a directory, or its tombstone; nullopt if the directory has neither.
absl::StatusOr<std::optional<VersionedContents>> ReadInPlace(Storage& storage,
                                                             std::string_view checkpoint_dir);

// Returns a string that identifies the manifest of a directory; "" without a manifest. Reads the
// header alone, whose checksums differ for two manifests in all but one of four billion cases.
// Manifests that the disk cannot return have one string.
absl::StatusOr<std::string> ManifestIdentity(Storage& storage, std::string_view checkpoint_dir);

// Returns the ManifestIdentity() of a manifest of these bytes.
std::string ManifestIdentity(std::string_view manifest_bytes);

// Reads the tombstone of a directory; nullopt if it has none, AlreadyExists for a manifest.
absl::StatusOr<std::optional<VersionedContents>> ReadTombstone(Storage& storage,
                                                               std::string_view checkpoint_dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DIRECTORY_H_
