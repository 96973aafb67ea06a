#ifndef TESSERA_CONVERT_TESTING_PACKED_FOLDER_H_
#define TESSERA_CONVERT_TESTING_PACKED_FOLDER_H_

// A folder in one file, for fuzz targets whose parser reads several files. A part begins with the
// line "== NAME OFFSET" after an empty line or at the beginning, and has the bytes of the file NAME
// from OFFSET on; bytes between parts are 0. No part contains its size, so that a mutation of one
// leaves the others unchanged. tests/interop/pack_folder.py writes it.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns a storage whose root is the packed folder. Files whose names are not paths, and bytes
// beyond the first MiB of a file, are left out.
std::shared_ptr<Storage> UnpackFolder(std::string_view packed);

// Returns a storage whose root has these files.
std::shared_ptr<Storage> FolderOf(const std::map<std::string, std::string>& files);

// Reads every tensor of moderate size of a checkpoint that was accepted; aborts if that fails.
void ReadTensors(ForeignStorage& storage);

// Reads the root of a storage with `read`, presents an accepted checkpoint as a storage, and calls
// ReadTensors(). Errors: those of `read` and of ForeignStorage::Create().
absl::Status ReadWholeFolder(
    const std::shared_ptr<Storage>& storage,
    const std::function<absl::StatusOr<ForeignCheckpoint>(Storage&)>& read);

// Calls ReadWholeFolder() for the root of a packed folder.
absl::Status ReadPackedFolder(
    std::string_view packed,
    const std::function<absl::StatusOr<ForeignCheckpoint>(Storage&)>& read);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TESTING_PACKED_FOLDER_H_
