#include "checkpoint/storage/read_only_storage.h"

#include "absl/strings/str_cat.h"

namespace tessera::ckpt {

ReadOnlyStorage::ReadOnlyStorage(std::string_view reason) : reason_(reason) {}

absl::Status ReadOnlyStorage::Refuse(std::string_view path) const {
  return absl::PermissionDeniedError(absl::StrCat(Describe(path), ": ", reason_));
}

absl::StatusOr<std::unique_ptr<WritableFile>> ReadOnlyStorage::Create(std::string_view path,
                                                                      uint64_t) {
  return Refuse(path);
}
absl::Status ReadOnlyStorage::Rename(std::string_view from, std::string_view) {
  return Refuse(from);
}
absl::Status ReadOnlyStorage::MakeDirectory(std::string_view path) { return Refuse(path); }
absl::Status ReadOnlyStorage::SyncDirectory(std::string_view path) { return Refuse(path); }
absl::Status ReadOnlyStorage::Delete(std::string_view path) { return Refuse(path); }
absl::Status ReadOnlyStorage::DeleteTree(std::string_view path) { return Refuse(path); }

}  // namespace tessera::ckpt
