#ifndef TESSERA_CHECKPOINT_STORAGE_READ_ONLY_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_READ_ONLY_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// A storage that shows files and changes none: everything that would returns PermissionDenied.
class ReadOnlyStorage : public Storage {
 public:
  // `reason`: why, for the message: "this view is read-only".
  explicit ReadOnlyStorage(std::string_view reason);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) final;
  absl::Status Rename(std::string_view from, std::string_view to) final;
  absl::Status MakeDirectory(std::string_view path) final;
  absl::Status SyncDirectory(std::string_view path) final;
  absl::Status Delete(std::string_view path) final;
  absl::Status DeleteTree(std::string_view path) final;

 private:
  absl::Status Refuse(std::string_view path) const;

  const std::string reason_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_READ_ONLY_STORAGE_H_
