#ifndef TESSERA_CHECKPOINT_MANAGER_FOLDER_LOCK_H_
#define TESSERA_CHECKPOINT_MANAGER_FOLDER_LOCK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::ckpt {

// Locks a folder of checkpoints for one run. Two runs in one folder cannot damage each other's
// checkpoints, but each would delete what the other one wants to keep, and neither would know which
// is its own. An advisory lock on a file in the folder, which the system releases however the
// process ends; the file stays. It is opened for writing, as locks on NFS need.
class FolderLock {
 public:
  static constexpr char kFileName[] = ".lock";

  struct Options {
    // How long to wait for another holder to end: the processes of a launcher that was killed
    // notice it after a second or two.
    absl::Duration wait = absl::Seconds(10);
    // Receives one sentence when it begins to wait. May be null.
    std::function<void(const std::string&)> on_wait = nullptr;
  };

  // FailedPrecondition while another holder exists; other errors where the file cannot be created.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(const std::string& folder,
                                                             const Options& options);
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(const std::string& folder);

  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  // A sentence for the user where the file system has no locks, so that nothing is locked; else
  // empty.
  const std::string& warning() const { return warning_; }

 private:
  explicit FolderLock(int fd) : fd_(fd) {}

  const int fd_;
  std::string warning_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_FOLDER_LOCK_H_
