#ifndef TESSERA_CONVERT_OPEN_FOREIGN_H_
#define TESSERA_CONVERT_OPEN_FOREIGN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/seal.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

struct OpenForeignOptions {
  std::string format;         // see IsFormatName(); empty: found out by looking at the files
  OpenStorageOptions stores;  // for every storage that is opened
  // Names of tensors, as states of the optimizer have them, to names of the model's parameters: for
  // PaddleNLP's files that do not tell them (see ReadPaddle()). The name of a JSON file with such a
  // map adds to it (see ParsePaddleParameterNames()), and demands the format "paddle".
  std::map<std::string, std::string> parameter_names;
  std::string parameter_names_file;
  // As manifests have it; may be null. The model of state dicts that do not describe it themselves.
  const ModelProto* model = nullptr;
  // May be null. Gives tensors their digests, unless a file now has another size.
  const Seal* seal = nullptr;
  // False: damaged files of a trainer's optimizer and scheduler beside a model are left out, with a
  // note, instead of being an error.
  bool needs_trainer_files = true;
};

// The names of the formats that are read. Tensors of dcp and torch keep their names in the files,
// unless a model gives them its own (NameStateDict()).
std::vector<std::string> FormatNames();

// Whether options may state this format: one of these names, or InternEvo's "internlm" (its own
// checkpoints) or "llama" (torch, the files of Meta's ranks).
bool IsFormatName(std::string_view name);

// A note for a conversion from this format: what its files have and is not read; empty for none.
std::string DescribeUnread(std::string_view format);

// A checkpoint of another framework.
struct FoundForeign {
  std::string name;                // of its folder or file
  std::vector<std::string> notes;  // for the user, where it is not the name that was given
};

// The checkpoint that a name means: itself, or, where it is the folder of a run, the newest of the
// folders in it that are named by their steps as those programs do (checkpoint-500, global_step500,
// iter_0000500, 500). With `step`, the one of that step, if it is the folder of a run. Reads no
// more than is needed to know a format. Errors: NotFound if nothing is found; FailedPrecondition,
// naming the newest one, for a run that has none of the step.
absl::StatusOr<FoundForeign> FindForeign(std::string_view name, std::optional<int64_t> step,
                                         const OpenForeignOptions& options);

// The checkpoint of another framework in a folder or a file, as a storage whose root is a
// checkpoint. In an object store, a file is what FindObject() finds. Errors: NotFound for a place
// that is not there or in none of the formats, and for nothing else; InvalidArgument for an unknown
// format; DataLoss for missing files; the other errors of its index pass and of
// ForeignStorage::Create().
absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeign(std::string_view name,
                                                            const OpenForeignOptions& options);

// The same for the root of a storage or, where it is not empty, a file in it.
absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeignFolder(std::shared_ptr<Storage> folder,
                                                                  const OpenForeignOptions& options,
                                                                  std::string file = "");

// An object that is a checkpoint by itself, and the folder that it is in.
struct ForeignObject {
  std::string folder;
  std::string file;
};

// The object of an object store that a name means: its ending is .gguf, as looking at the store
// does not tell objects from folders. nullopt for other names.
std::optional<ForeignObject> FindObject(std::string_view name);

// What the headers of a checkpoint tell besides tensors; see ForeignCheckpoint.
struct ForeignDescription {
  Manifest manifest;  // ForeignCheckpoint::description
  std::string mismatch;
  std::vector<std::string> notes;
};

// Reads no tensor. Errors: those of OpenForeign()'s index pass.
absl::StatusOr<ForeignDescription> DescribeForeign(std::string_view name,
                                                   const OpenForeignOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_OPEN_FOREIGN_H_
