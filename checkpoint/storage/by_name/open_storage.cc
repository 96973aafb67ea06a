#include "checkpoint/storage/by_name/open_storage.h"

#include "absl/status/status.h"
#include "checkpoint/storage/posix_storage.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kLocal = "local:";

}  // namespace

std::optional<std::string> LocalPathOfName(std::string_view name) {
  if (name.starts_with(kLocal)) name.remove_prefix(kLocal.size());
  return std::string(name);
}

absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(std::string_view name,
                                                     const OpenStorageOptions& options) {
  const std::string path = LocalPathOfName(name).value();
  if (path.empty()) return absl::InvalidArgumentError("the name of a storage is empty");
  return OpenPosixStorage(path, {.create_root = options.create_root});
}

}  // namespace tessera::ckpt
