#ifndef TESSERA_CHECKPOINT_INTERNAL_KNOWN_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_INTERNAL_KNOWN_CHECKPOINT_H_

// Implemented in checkpoint/load/checkpoint.cc.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/read_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Makes a checkpoint of a manifest that was read already, for example by another rank. If `reading`
// is null, nothing keeps the checkpoint from being deleted. `readers` has, for each data file, the
// ranks that can read it, ascending; they read it for the others in Load(). Empty: all ranks can
// read all files. Precondition: the manifest is valid, as ReadManifest() returns it.
Checkpoint CheckpointOfManifest(std::shared_ptr<Storage> storage, std::string_view directory,
                                Manifest manifest,
                                std::shared_ptr<const ReadLock> reading = nullptr,
                                std::vector<std::vector<uint32_t>> readers = {});
// The same; the storage must outlive the checkpoint.
Checkpoint CheckpointOfManifest(Storage& storage, std::string_view directory, Manifest manifest);

// Opens the checkpoint in a directory of a storage, as Checkpoint::Open() does.
absl::StatusOr<Checkpoint> OpenCheckpoint(std::shared_ptr<Storage> storage,
                                          std::string_view directory);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_KNOWN_CHECKPOINT_H_
