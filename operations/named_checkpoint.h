#ifndef TESSERA_OPERATIONS_NAMED_CHECKPOINT_H_
#define TESSERA_OPERATIONS_NAMED_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/value.h"
#include "convert/write_foreign.h"
#include "operations/sealing.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// A checkpoint of any format, found by its name.
struct NamedCheckpoint {
  std::shared_ptr<Storage> storage;
  std::string directory;  // within the storage; may be empty
  // The opened checkpoint; DataLoss if the manifest, or a sealed file, is damaged.
  absl::StatusOr<Checkpoint> opened;
  // The format of another framework, and the name of the checkpoint's folder or file; empty: a
  // checkpoint of this library.
  std::string format;
  std::string foreign_name;
  // Notes: which of several checkpoints this is, and which parts of another framework's checkpoint
  // were not understood.
  std::vector<std::string> notes;
  // The values of another framework's checkpoint besides tensors. In a checkpoint of this library,
  // they are in the manifest.
  convert::SavedValue state = {convert::SavedValue::Dict{}};
  // `storage`, for another framework's checkpoint; null if `opened` is an error.
  const convert::ForeignStorage* foreign = nullptr;
  // The seal of another framework's checkpoint; null without one. With a seal, `opened` may be an
  // error, and the seal can still be verified.
  std::optional<convert::FoundSeal> seal;

  // Checks the records of another framework's files that reading all tensors does not check. Called
  // before all tensors are converted.
  absl::Status CheckOtherRecords() const;

  // Returns the values for WriteForeign().
  const convert::SavedValue* foreign_state() const { return format.empty() ? nullptr : &state; }

  std::string Describe() const {
    return foreign_name.empty() ? storage->Describe(directory) : foreign_name;
  }
};

// Options for the names of checkpoints.
struct SourceOptions {
  OpenStorageOptions stores;         // for every storage that is opened
  std::string format;                // another framework's; empty: detected from the files
  std::string parameter_names_file;  // see OpenForeignOptions
  bool use_seal = true;              // whether a seal of another framework's checkpoint is used
  // The step of the checkpoint in a folder, or the step of a single checkpoint, whatever it
  // records; unset: FindCheckpoint() chooses, and the step is the recorded one.
  std::optional<int64_t> step;
};

// Returns whether `name` can only mean another framework's checkpoint, because it names a file or
// the options say so.
bool IsForeignName(const std::string& name, const SourceOptions& options);

// Finds a checkpoint. `name` (see OpenStorage()) is the directory of a checkpoint, another
// framework's checkpoint, or a folder of checkpoints. In a folder, ChooseToRead() chooses one,
// rolling ones included, unless SourceOptions::step is set. NotFound for any other place, and for a
// folder without a checkpoint of the step.
absl::StatusOr<NamedCheckpoint> FindCheckpoint(const std::string& name,
                                               const SourceOptions& options);

// Writes a checkpoint of any format in the format of another framework, after checking all records
// of the source; see WriteForeign(). The report's notes begin with the notes about the source. The
// message of an error includes the notes that may explain it; see WithNotes().
absl::StatusOr<convert::WriteForeignReport> Export(const NamedCheckpoint& source,
                                                   const std::string& folder,
                                                   const convert::WriteForeignOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_NAMED_CHECKPOINT_H_
