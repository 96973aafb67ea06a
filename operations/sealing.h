#ifndef TESSERA_OPERATIONS_SEALING_H_
#define TESSERA_OPERATIONS_SEALING_H_

// Seals beside the checkpoints of other frameworks: finding, writing and proving them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/verify_options.h"
#include "convert/core/digests.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/seal.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The place of a checkpoint's seal, and what is there.
struct FoundSeal {
  std::shared_ptr<Storage> folder;  // with the sealed files
  std::string path;                 // of the seal, in the folder
  std::string file;                 // the checkpoint's file; empty: the whole folder
  std::string bytes;
  // The seal. DataLoss if it is damaged, Unimplemented if it has another version, another error if
  // it cannot be read.
  absl::StatusOr<Seal> seal;

  std::string Describe() const { return folder->Describe(path); }
};

// Finds the seal of a folder or file: "tessera.seal" in a folder, "m.gguf.tessera.seal" beside a
// file. Neither the folder's other files nor the file need exist. nullopt without a seal.
absl::StatusOr<std::optional<FoundSeal>> FindSeal(std::string_view name,
                                                  const OpenStorageOptions& stores);

// Writes a small file beside a checkpoint, atomically and durably. AlreadyExists if the file
// exists, unless `overwrite`.
absl::Status PutBeside(Storage& storage, const std::string& path, std::string_view bytes,
                       bool overwrite);

struct WriteSealOptions {
  bool overwrite = false;     // replaces an existing seal
  OpenStorageOptions stores;  // for every storage that is opened
  IoOptions io;               // for reading tensors and, from 0 bytes again, for reading files
};

struct WriteSealReport {
  std::string path;  // of the seal
  int64_t files = 0;
  uint64_t bytes = 0;              // of the files
  int64_t tensors = 0;             // with a digest
  bool removed_signature = false;  // that of an old seal, whose contents differed
  absl::Duration duration;
};

// Seals the checkpoint of that name, which was opened without a seal: all files in and below its
// folder or, if it is a file, the files that have its tensors. Links to folders are not followed.
// Reads every tensor, and then every file; nothing may change meanwhile. The seal appears complete
// and durable or not at all. Memory: the buffers of a Scanner, and 36 bytes for each MiB of the
// files.
//
// Errors: AlreadyExists if there is a seal. DataLoss for a checkpoint that is damaged or lacks
// parameters of its model, since a seal would certify the damage. Those of the storage, at the
// beginning if nothing can be written in a local folder.
absl::StatusOr<WriteSealReport> WriteSeal(std::string_view name, const Checkpoint& checkpoint,
                                          const ForeignStorage& files,
                                          const WriteSealOptions& options);

// Reads every sealed file and compares sizes, CRC-32C and SHA-256 of each chunk; in a folder, also
// reports files that are not sealed. `options.digests` is ignored. Precondition: found.seal is OK.
absl::StatusOr<VerifyReport> VerifySealed(const FoundSeal& found, const VerifyOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_OPERATIONS_SEALING_H_
