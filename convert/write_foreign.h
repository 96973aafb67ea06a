#ifndef TESSERA_CONVERT_WRITE_FOREIGN_H_
#define TESSERA_CONVERT_WRITE_FOREIGN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/output.h"
#include "storage/open_storage.h"

namespace tessera::ckpt::convert {

struct WriteForeignOptions {
  std::string format;  // one of WrittenFormatNames()
  // With a null `state`, the manifest's is written (StateOf()). `left_out` is not used. A tokenizer
  // is for FormatsWithTokenizer().
  PlanOptions plan;
  OpenStorageOptions stores;  // for every storage that is opened
  IoOptions io;               // for writing and, from 0 bytes again, for reading back
};

// The parts of a checkpoint that the files made from it lack.
struct LeftOut {
  std::vector<std::string> tensors;  // names
  std::vector<std::string> dtypes;   // names of tensors of another dtype, without a request
  // Second names of tensors that become tensors of their own, because the format has no tied ones.
  std::vector<std::string> ties;
  std::vector<std::string> values;      // names
  std::vector<std::string> simplified;  // names of values of simpler types: tuples for namedtuples
  std::vector<std::string> trainer;     // fields of TrainerState, "step" for example
  // Options of parameter groups, "weight_decay" for example.
  std::vector<std::string> optimizer;
};

struct WriteForeignReport {
  uint64_t bytes = 0;
  std::vector<std::string> files;
  int64_t tensors = 0;           // written and, read back, equal to the source
  int64_t digests_compared = 0;  // number of tensors equal to the source's own digests
  absl::Duration duration;
  std::vector<std::string> removed;  // see LocalFolder
  LeftOut left_out;                  // what the new checkpoint lacks
  std::vector<std::string> notes;    // about left_out, one sentence each
};

std::vector<std::string> WrittenFormatNames();
// Returns InvalidArgument, which ends with the formats that are written and `others`, if `format`
// is not.
absl::Status CheckIsWritten(const std::string& format, const std::string& others = "");
// Returns the formats that hold the model's tokenizer.
std::vector<std::string> FormatsWithTokenizer();

// Writes a checkpoint in another framework's format to a new folder, or to a file of this name if
// the format's checkpoint is a single file. A folder on a local disk gets its name when all its
// files are durable and have been read back. Every tensor's digest is compared with that of the
// data read from the source, and with the source's own if that exists and the dtype is the same. In
// an object store, the file without which readers find no checkpoint (OutputFile::commits) is
// created last. A single file is visible there as soon as it is complete. An object `unfinished`
// keeps two writers apart there. After an error, nothing is left of the folder.
//
// Errors: AlreadyExists (the folder); InvalidArgument for a tokenizer with more ids than the model,
// and, naming a field, for a model whose function the format does not keep; DataLoss, naming the
// tensor, if a digest differs; those of the format's plan, of WriteOutput() and of OpenForeign().
absl::StatusOr<WriteForeignReport> WriteForeign(const Checkpoint& checkpoint,
                                                const std::string& folder,
                                                const WriteForeignOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_WRITE_FOREIGN_H_
