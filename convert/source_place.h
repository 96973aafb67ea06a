#ifndef TESSERA_CONVERT_SOURCE_PLACE_H_
#define TESSERA_CONVERT_SOURCE_PLACE_H_

// The places in which checkpoints of other frameworks are: folders, and single files.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The place of the files: all of a folder, or one file in it.
struct SourcePlace {
  std::shared_ptr<Storage> storage;  // its root is the folder
  std::string file;                  // empty: the whole folder
};

// Returns the place that a name names, which need not be a checkpoint. An object of an object store
// is found by FindObject().
absl::StatusOr<SourcePlace> FindPlace(std::string_view name, const OpenStorageOptions& stores);

// Returns the place of a file on a local disk, which need not be there; its folder must.
absl::StatusOr<SourcePlace> PlaceOfLocalFile(const std::string& local);

// An object that is a checkpoint by itself, and the folder that it is in.
struct ForeignObject {
  std::string folder;
  std::string file;
};

// Returns the object of an object store that a name names. An object is recognised by its ending
// .gguf, since the store does not distinguish objects from folders. nullopt for other names.
std::optional<ForeignObject> FindObject(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_SOURCE_PLACE_H_
