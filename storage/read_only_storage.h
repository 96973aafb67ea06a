#ifndef TESSERA_STORAGE_READ_ONLY_STORAGE_H_
#define TESSERA_STORAGE_READ_ONLY_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/storage.h"

namespace tessera {

// A storage that cannot be changed: every operation that would change something returns
// PermissionDenied.
class ReadOnlyStorage : public Storage {
 public:
  // `reason` is part of the message: "this view is read-only".
  explicit ReadOnlyStorage(std::string_view reason) : reason_(reason) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path, uint64_t) final {
    return Refuse(path);
  }
  absl::Status Rename(std::string_view from, std::string_view) final { return Refuse(from); }
  absl::Status MakeDirectory(std::string_view path) final { return Refuse(path); }
  absl::Status SyncDirectory(std::string_view path) final { return Refuse(path); }
  absl::Status Delete(std::string_view path) final { return Refuse(path); }
  absl::Status DeleteTree(std::string_view path) final { return Refuse(path); }

 private:
  absl::Status Refuse(std::string_view path) const {
    return absl::PermissionDeniedError(absl::StrCat(Describe(path), ": ", reason_));
  }

  const std::string reason_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_READ_ONLY_STORAGE_H_
