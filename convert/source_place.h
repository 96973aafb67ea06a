#ifndef TESSERA_CONVERT_SOURCE_PLACE_H_
#define TESSERA_CONVERT_SOURCE_PLACE_H_

// The places in which checkpoints of other frameworks are: folders, single files, and the folders
// of a run; sentences about places in which none was found.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
// is found by FindObject(). Without the object, the name means a folder, or a GGUF file to be.
absl::StatusOr<SourcePlace> FindPlace(std::string_view name, const OpenStorageOptions& stores);

// Returns the place of a file on a local disk, which need not be there; its folder must.
absl::StatusOr<SourcePlace> PlaceOfLocalFile(const std::string& local);

// An object that is a checkpoint by itself, and the folder that it is in.
struct ForeignObject {
  std::string folder;
  std::string file;
};

// Returns the object of an object store that a name with the ending of a file of GGUF, torch or
// safetensors may name; the store does not distinguish objects from folders. nullopt for others.
std::optional<ForeignObject> FindObject(std::string_view name);

// A folder of a run, named by its step in the way of another framework: checkpoint-500,
// checkpoint_step_000500, global_step500, iter_0000500, step-500, step_500, 500.
struct StepFolder {
  int64_t step = 0;
  std::string name;
};

// Returns the step folders directly in the storage's root, the newest first; of one step, by name.
// Errors: those of Storage::List().
absl::StatusOr<std::vector<StepFolder>> ListStepFolders(Storage& storage);

// Describes a folder in which no checkpoint was found, the root of a storage, as the end of an
// error's sentence: "it is empty", or its first entries. Also names the file that is missing beside
// entries like those of a checkpoint, of any framework, the format of one that is not read, and the
// folder of a run's checkpoints.
std::string DescribeContents(Storage& folder);

// Returns what to name instead of a manifest or a file of DCP or PaddleNLP, or the format of a file
// that is not read, as the end of an error's sentence; "" for others.
std::string DescribeFile(std::string_view name);

// Says why a name cannot be opened: "is not there", or "is a link to PATH, which is not there".
std::string DescribeAbsence(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_SOURCE_PLACE_H_
