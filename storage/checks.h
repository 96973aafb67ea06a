#ifndef TESSERA_STORAGE_CHECKS_H_
#define TESSERA_STORAGE_CHECKS_H_

// Common parts of all storages: checks, messages, listings, and transfers that Wait() completes.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera {

// Returns InvalidArgument unless `path` is relative, without empty, "." or ".." components, without
// NUL, at most 4095 bytes long and at most 255 bytes per component. "" is valid if `root_allowed`.
absl::Status CheckPath(std::string_view operation, std::string_view path, bool root_allowed);

// Returns {"a/b", "c"} for "a/b/c", and {"", "a"} for "a". Precondition: a path that passed
// CheckPath(), not "".
std::pair<std::string_view, std::string_view> SplitPath(std::string_view path);

// Returns DataLoss: `offset_bytes + expected_bytes` lies beyond the end of the file.
absl::Status ShortReadStatus(const std::string& name, uint64_t offset_bytes,
                             uint64_t expected_bytes, uint64_t file_bytes);

// Returns NoSpaceError() if the storage has too little space below `root` for so many bytes, which
// `what` needs ("the checkpoint"), as far as it tells.
absl::Status CheckRoom(Storage& storage, std::string_view root, std::string_view what,
                       uint64_t needed_bytes);

// Returns what Storage::List() does; nothing if the directory does not exist.
absl::StatusOr<std::vector<std::string>> ListIfThere(Storage& storage, std::string_view directory);

// Returns the size of the files in a directory, those aside that cannot be opened.
uint64_t BytesBelow(Storage& storage, const std::string& directory);

// Returns a transfer whose Wait() is `act`, which owns the part that was started.
template <typename Act>
std::unique_ptr<PendingIo> WaitToDo(Act act) {
  class Pending final : public PendingIo {
   public:
    explicit Pending(Act act) : act_(std::move(act)) {}
    absl::Status Wait() override { return act_(); }

   private:
    const Act act_;
  };
  return std::make_unique<Pending>(std::move(act));
}

}  // namespace tessera

#endif  // TESSERA_STORAGE_CHECKS_H_
