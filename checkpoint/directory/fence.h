#ifndef TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_
#define TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_

// The tombstone, and the names in a checkpoint's directory other than its manifest and its data
// files.
//
// A tombstone takes a directory out of a late writer's reach in storages that cannot rename
// directories. Before the data of an attempt that may still commit is deleted, a tombstone takes
// the place of its manifest, so that the commit, which creates that object, fails. A later save of
// the step replaces the tombstone that it has found at its beginning (Storage::Write() on the
// condition of its version). Each deletion makes a new tombstone, which fences the attempts that
// found the one before.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Name of the mark of a fenced directory. The mark means that manifest.pb may be a tombstone, so
// that only then manifest.pb must be read to know whether a checkpoint is committed. It also means
// that a commit may still arrive, of another attempt or of the one that has committed, which had to
// repeat its request.
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

// Reads the tombstone in place of a directory's manifest; nullopt if there is neither.
// AlreadyExists for a manifest.
absl::StatusOr<std::optional<VersionedContents>> ReadTombstone(Storage& storage,
                                                               std::string_view checkpoint_dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_
