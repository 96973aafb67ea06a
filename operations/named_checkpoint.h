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
#include "convert/sealing.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// A checkpoint of any format that a name means.
struct NamedCheckpoint {
  std::shared_ptr<Storage> storage;
  std::string directory;  // within the storage; may be empty
  // DataLoss where the manifest is damaged, or what was sealed.
  absl::StatusOr<Checkpoint> opened;
  // Another framework's, and the name of its folder or file; empty: a checkpoint of this library.
  std::string format;
  std::string foreign_name;
  // What there is to say about another framework's checkpoint: which one of several it is, and what
  // was not understood.
  std::vector<std::string> notes;
  // What that has besides tensors. Of a checkpoint of this library, its manifest tells it.
  convert::SavedValue state = {convert::SavedValue::Dict{}};
  // `storage`, of another framework's; null where `opened` is an error.
  const convert::ForeignStorage* foreign = nullptr;
  // Another framework's, which need not open then.
  std::optional<convert::FoundSeal> seal;

  // Before all tensors are converted, which checks the rest: an error for damage of a record of
  // another framework's file.
  absl::Status CheckOtherRecords() const;

  // For WriteForeign().
  const convert::SavedValue* foreign_state() const { return format.empty() ? nullptr : &state; }

  std::string Describe() const {
    return foreign_name.empty() ? storage->Describe(directory) : foreign_name;
  }
};

// How the names of checkpoints are understood.
struct SourceOptions {
  OpenStorageOptions stores;         // for every storage that is opened
  std::string format;                // another framework's; empty: found out by looking
  std::string parameter_names_file;  // see OpenForeignOptions
  bool use_seal = true;              // of another framework's
  // Which checkpoint of a folder is meant, or, of a single one, what its step is, whatever it tells
  // itself; unset: the newest, and what it tells.
  std::optional<int64_t> step;
};

// Whether `name` can only mean another framework's checkpoint, because it names a file or the
// options say so.
bool IsForeignName(const std::string& name, const SourceOptions& options);

// `name` (see OpenStorage()) names a checkpoint's directory, or a folder of checkpoints, of which
// the newest is used (see SourceOptions::step), or another framework's checkpoint. NotFound for any
// other place, and for a folder that has none of the step.
absl::StatusOr<NamedCheckpoint> FindCheckpoint(const std::string& name,
                                               const SourceOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_NAMED_CHECKPOINT_H_
