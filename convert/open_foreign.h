#ifndef TESSERA_CONVERT_OPEN_FOREIGN_H_
#define TESSERA_CONVERT_OPEN_FOREIGN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/seal.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

struct OpenForeignOptions {
  std::string format;         // see IsFormatName(); empty: detected from the files
  OpenStorageOptions stores;  // for every storage that is opened
  // A JSON file of parameters' names, for PaddleNLP's files without them (ReadPaddle(),
  // ParsePaddleParameterNames()). It demands the format "paddle".
  std::string parameter_names_file;
  // The model of state dicts that do not describe theirs, as in manifests; may be null.
  const ModelProto* model = nullptr;
  // A seal that gives tensors their digests, unless a file now has another size; may be null.
  const Seal* seal = nullptr;
  // Whether damaged files of a trainer's optimizer and scheduler beside a model, or of moments in a
  // universal checkpoint of DeepSpeed, are an error. If not, they are left out, with a note.
  bool needs_trainer_files = true;
};

// Returns the names of the formats that are read, "safetensors" (dcp) among them. Tensors of dcp
// and torch keep their names in the files, unless a model gives them its own (NameStateDict()).
std::vector<std::string> FormatNames();

// Returns whether options may name this format: one of FormatNames(), or InternEvo's "internlm"
// (its own checkpoints), "llama" (torch, of Meta's ranks), "hf_llama" (hf).
bool IsFormatName(std::string_view name);

// Returns a note for a conversion from this format about the contents of files that are not read;
// empty if everything is read.
std::string DescribeUnread(std::string_view format);

// A checkpoint of another framework.
struct FoundForeign {
  std::string name;                // of its folder or file
  std::vector<std::string> notes;  // for the user, where it is not the name that was given
};

// Finds the checkpoint that a name names. In the folder of a run, other frameworks name folders by
// their steps (checkpoint-500, global_step500, iter_0000500, 500). The result is the newest of
// these, or with `step` the one of that step. Reads no more than is needed to detect a format.
// Errors: NotFound if nothing is found; FailedPrecondition, naming the newest checkpoint, for a run
// that has none of the step.
absl::StatusOr<FoundForeign> FindForeign(std::string_view name, std::optional<int64_t> step,
                                         const OpenForeignOptions& options);

// Opens the checkpoint of another framework in a folder or a file, as a storage whose root is a
// checkpoint. In an object store, a file is found by FindObject(). Errors: NotFound only for a
// place that does not exist or has none of the formats, InvalidArgument for an unknown format,
// DataLoss for missing files. Also the other errors of the index pass and of
// ForeignStorage::Create().
absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeign(std::string_view name,
                                                            const OpenForeignOptions& options);

// Opens the checkpoint in the root of a storage or, if `file` is not empty, a file in it.
absl::StatusOr<std::unique_ptr<ForeignStorage>> OpenForeignFolder(std::shared_ptr<Storage> folder,
                                                                  const OpenForeignOptions& options,
                                                                  std::string file = "");

// Runs the index pass over a checkpoint, which reads no tensors. Errors: those of OpenForeign().
absl::StatusOr<ForeignCheckpoint> DescribeForeign(std::string_view name,
                                                  const OpenForeignOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_OPEN_FOREIGN_H_
