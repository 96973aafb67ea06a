#ifndef TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_
#define TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_

// Names in a checkpoint's directory other than its manifest and its data files, and the tombstone.
//
// A storage that cannot rename directories has no other way to take one out of a late writer's
// reach: before the data of an attempt that may still commit is deleted, a tombstone takes the
// place of its manifest, so that the commit, which creates that object, fails. A later save of the
// step replaces the tombstone that it has found at its beginning (Storage::Exchange); each deletion
// brings a new one, which fences the attempts that found the one before.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Its presence says that manifest.pb may be a tombstone, so that only then it need be read to know
// whether a checkpoint is committed; and that a commit may still arrive, of another attempt or of
// the one that has committed, which had to repeat its request.
inline constexpr std::string_view kFencedFileName = "manifest.pb.fenced";

absl::Status MarkAsFenced(Storage& storage, std::string_view checkpoint_dir);

// Unlike any other.
std::string MakeTombstone();

bool IsTombstone(std::string_view manifest_bytes);

// When it was made, in seconds since 1970; 0 where that cannot be read.
int64_t TombstoneTime(std::string_view tombstone);

// Whether that is the name of a quarantined manifest: "manifest.pb.damaged-2". Nothing that
// it names is deleted or replaced, nor is it.
bool IsQuarantinedName(std::string_view name);

// The tombstone in place of a directory's manifest; nullopt if there is neither. AlreadyExists for
// a manifest.
absl::StatusOr<std::optional<VersionedContents>> ReadTombstone(Storage& storage,
                                                               std::string_view checkpoint_dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_FENCE_H_
