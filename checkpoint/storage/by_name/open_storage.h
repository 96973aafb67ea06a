#ifndef TESSERA_CHECKPOINT_STORAGE_BY_NAME_OPEN_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_BY_NAME_OPEN_STORAGE_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct OpenStorageOptions {
  // For writing: creates the root directory, with its parents, if it does not exist.
  bool create_root = false;
};

// Opens the storage that `name` names:
//
//   /runs/a, runs/a     a directory
//   local:/runs/a       the same; for paths that look like something else
//
// Errors: InvalidArgument for an empty name; those of the storage.
absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(std::string_view name,
                                                     const OpenStorageOptions& options = {});

// The path of a name that stands for a directory; nullopt for other storages.
std::optional<std::string> LocalPathOfName(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_BY_NAME_OPEN_STORAGE_H_
