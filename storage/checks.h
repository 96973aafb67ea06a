#ifndef TESSERA_STORAGE_CHECKS_H_
#define TESSERA_STORAGE_CHECKS_H_

// What every Storage shares: checks, messages, and transfers of which a part is left to Wait().

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "storage/storage.h"

namespace tessera {

// InvalidArgument unless `path` is relative, without empty, "." or ".." components, without NUL, at
// most 4095 bytes long and at most 255 bytes per component. "" is valid where `root_allowed`.
absl::Status CheckPath(std::string_view operation, std::string_view path, bool root_allowed);

// {"a/b", "c"} of "a/b/c"; {"", "a"} of "a". Precondition: a path that passed CheckPath, not "".
std::pair<std::string_view, std::string_view> SplitPath(std::string_view path);

// DataLoss: `offset_bytes + expected_bytes` lies beyond the end of the file.
absl::Status ShortReadStatus(const std::string& name, uint64_t offset_bytes,
                             uint64_t expected_bytes, uint64_t file_bytes);

// A transfer whose Wait() is `act`, which owns what was started of it.
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
