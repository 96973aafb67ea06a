#ifndef TESSERA_CONVERT_FORMATS_H_
#define TESSERA_CONVERT_FORMATS_H_

// The known formats, and all that opening and writing a checkpoint depends on.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "convert/open_foreign.h"
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

// The data that a written format can hold, besides the tensors of its plan.
enum class Holds {
  kWeights,     // nothing
  kStep,        // the step
  kProgress,    // the step, and the consumed samples
  kEverything,  // all of the trainer's state, and values
};

struct Format {
  std::string_view name;
  std::string_view other_name = {};  // InternEvo's ckpt_type
  // Returns whether the files are of this format, judged by their names and first bytes.
  absl::StatusOr<bool> (*matches)(const SourcePlace& place);
  absl::StatusOr<ForeignCheckpoint> (*read)(const SourcePlace& place,
                                            const OpenForeignOptions& options);
  // Plans the files of a checkpoint. Null: the format is only read.
  absl::StatusOr<std::vector<OutputFile>> (*plan)(const Manifest& manifest,
                                                  const PlanOptions& options) = nullptr;
  Holds holds = Holds::kWeights;
  bool has_tokenizer = false;  // `plan` takes the model's
  // Whether a checkpoint is a single file, the only one of its plan, under the given name.
  bool is_file = false;
  std::string_view without_tokenizer = {};  // a note
  // Whether the files have values besides tensors of which only the step, the position and the like
  // are read.
  bool has_unread_values = false;
};

// Returns the formats in the order in which they are tried.
std::span<const Format> Formats();

// Returns whether these are the files of tensor-parallel ranks as Meta names them:
// "consolidated.00.pth", "consolidated.01.pth", ..., two or more.
bool AreMetaParts(std::span<const std::string> files);

// Reads the model of params.json, of which each file, in the order of the ranks, has a part of
// every tensor. The shape of a part shows along which dim the tensor is cut into equal parts, or
// that the part is a copy: embedding tables are cut by rows since Llama 3 and by columns before.
//
// Errors: NotFound without params.json; DataLoss, naming file and tensor, for tensors that are not
// such a part, that only some files have, or that are missing or unknown; those of ReadTorch().
absl::StatusOr<ForeignCheckpoint> ReadMetaParts(Storage& storage, std::string_view folder,
                                                std::span<const std::string> files);

// Adds the files that transformers' trainers and accelerate keep beside a model: tensors and values
// of "optimizer.pt" or "optimizer.bin" below "optimizer.", of "scheduler.pt" or "scheduler.bin"
// below "scheduler.", and the JSON object trainer_state.json below "trainer_state.". Missing files
// are left out; so are damaged ones unless `needed`, with a note. Errors: DataLoss, naming the
// file; those of the storage.
absl::Status AddTrainerFiles(Storage& storage, std::string_view folder, bool needed,
                             ForeignCheckpoint& checkpoint);

// Sets the step of the trainer, and the consumed samples, from values of the usual names: the names
// of known programs, and "global_step", "step", "iteration" and "iter_num" in the outermost dict. A
// step that the optimizer has counted takes precedence, then the first value; notes name values
// that differ.
void TakeTrainerValues(ForeignCheckpoint& checkpoint);

// A folder of a run, named by its step in the way of another framework: checkpoint-500,
// checkpoint_step_000500, global_step500, iter_0000500, step-500, step_500, 500.
struct StepFolder {
  int64_t step = 0;
  std::string name;
};

// Returns the step folders directly in the storage's root, the newest first; of one step, by name.
// Errors: those of Storage::List().
absl::StatusOr<std::vector<StepFolder>> ListStepFolders(Storage& storage);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_H_
