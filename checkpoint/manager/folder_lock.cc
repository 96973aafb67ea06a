#include "checkpoint/include/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/manager/lease.h"

namespace tessera::ckpt {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

// 0, or the error.
int TryToLock(int fd) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

absl::Status InUse(const std::string& folder) {
  return absl::FailedPreconditionError(
      absl::StrCat(folder, " is in use: another process saves there"));
}

class FileLock final : public FolderLock {
 public:
  // Opens the folder and its lock file.
  static absl::StatusOr<std::unique_ptr<FileLock>> Open(const std::string& folder) {
    std::unique_ptr<FileLock> lock(new FileLock(folder));
    lock->folder_fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock->folder_fd_ >= 0) lock->file_fd_ = lock->OpenFile();
    if (lock->file_fd_ >= 0) return lock;
    return absl::UnknownError(absl::StrCat(
        "cannot create the lock file ", folder, "/", kFileName, ": ",
        errno == EINVAL ? "it is not a regular file" : std::generic_category().message(errno)));
  }
  ~FileLock() override {
    ::close(file_fd_);
    ::close(folder_fd_);
  }

  // 0, or the error: EWOULDBLOCK while another process has one of the two. Not every file system
  // locks folders.
  int Try() {
    if (TryToLock(folder_fd_) == EWOULDBLOCK) return EWOULDBLOCK;
    while (true) {
      const int error = TryToLock(file_fd_);
      if (error != 0 || IsInPlace(file_fd_)) return error;
      // The file was deleted while it was waited for, and its holder may have another one.
      const int fd = OpenFile();
      if (fd < 0) return errno;
      ::close(std::exchange(file_fd_, fd));
    }
  }

  // The file may have been deleted, and another one locked by a process to which the folder looked
  // free.
  absl::Status Check() const override {
    const MutexLock lock(&mutex_);
    if (IsInPlace(file_fd_)) return absl::OkStatus();
    const int fd = OpenFile();
    if (fd < 0) return absl::OkStatus();
    if (TryToLock(fd) == EWOULDBLOCK) {
      ::close(fd);
      return absl::FailedPreconditionError(absl::StrCat(
          folder_, "/", kFileName, " was deleted or replaced, and ", InUse(folder_).message()));
    }
    ::close(std::exchange(file_fd_, fd));
    return absl::OkStatus();
  }

  using FolderLock::set_warning;

 private:
  explicit FileLock(std::string folder) : folder_(std::move(folder)) {}

  int OpenFile() const {
    return OpenRegularFile(folder_fd_, kFileName, O_RDWR | O_CREAT | O_NOFOLLOW);
  }
  bool IsInPlace(int fd) const {
    struct stat ours, there;
    return ::fstat(fd, &ours) == 0 &&
           ::fstatat(folder_fd_, kFileName, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  }

  const std::string folder_;
  int folder_fd_ = -1;
  mutable Mutex mutex_;
  mutable int file_fd_ = -1;  // replaced by Check()
};

absl::StatusOr<std::unique_ptr<FolderLock>> LockFile(const std::string& folder,
                                                     const FolderLock::Options& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, FileLock::Open(folder));
  const absl::Duration deadline = SteadyNow() + options.wait;
  int error = lock->Try();
  if (error == EWOULDBLOCK && options.wait > absl::ZeroDuration() && options.on_wait) {
    options.on_wait(absl::StrCat("waiting up to ", absl::FormatDuration(options.wait),
                                 " for another process that saves to ", folder, " to end"));
  }
  while (error == EWOULDBLOCK && SteadyNow() < deadline) {
    absl::SleepFor(kPollInterval);
    error = lock->Try();
  }
  if (error == EWOULDBLOCK) return InUse(folder);
  if (error != 0) {
    lock->set_warning(absl::StrCat("WARNING: ", folder, " cannot be locked (",
                                   std::generic_category().message(error),
                                   "): make sure that only one run at a time saves there"));
  }
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Acquire(std::unique_ptr<Storage> storage,
                                                                const Options& options) {
  const std::optional<std::string> folder = storage->LocalPath("");
  if (folder.has_value()) return LockFile(*folder, options);
  return AcquireLease(std::move(storage), options);
}

}  // namespace tessera::ckpt
