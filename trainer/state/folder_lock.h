#ifndef TESSERA_TRAINER_STATE_FOLDER_LOCK_H_
#define TESSERA_TRAINER_STATE_FOLDER_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Locks a folder for one run: two that save the same step there at the same time would mix their
// bytes under one manifest. An advisory lock on the folder itself, which the system releases
// however the process ends; it leaves no file behind.
class FolderLock {
 public:
  // FailedPrecondition while another holder exists; other errors where the folder cannot be opened.
  // A file system without locks is not an error: nothing is locked then.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(const std::string& folder);

  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_FOLDER_LOCK_H_
