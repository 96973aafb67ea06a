#ifndef TESSERA_CHECKPOINT_ENGINE_DIRECTORY_H_
#define TESSERA_CHECKPOINT_ENGINE_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

inline constexpr std::string_view kTemporaryManifestFileName = "manifest.pb.tmp";

// "a/b"; either part may be empty.
std::string JoinPath(std::string_view directory, std::string_view name);

// Inverse of StepDirectoryName; nullopt for anything else.
std::optional<int64_t> ParseStepDirectoryName(std::string_view name);

// True if the directory holds a committed manifest; false also if there is no such directory.
absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir);

// The bytes of a committed manifest, of which CheckManifestBytes() has nothing to say. NotFound
// lists what is there instead; DataLoss names the file.
absl::StatusOr<std::string> ReadManifestBytes(Storage& storage, std::string_view checkpoint_dir);

// Those bytes, decoded. DataLoss names the file; also where the directory is named for another step
// than the manifest's.
absl::StatusOr<Manifest> DecodeManifestOf(Storage& storage, std::string_view checkpoint_dir,
                                          std::string_view bytes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_DIRECTORY_H_
