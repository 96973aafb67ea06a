#include "storage/lock/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/errno_status.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "storage/lock/lease.h"
#include "storage/lock/locked_fd.h"

namespace tessera {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

// Returns false while another process has locked it.
absl::StatusOr<bool> TryToLock(const LockedFd& fd) {
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return ErrnoStatus(errno);
  }
  return true;
}

constexpr size_t kMaxHolderBytes = 512;

absl::Status InUse(const std::string& folder, const std::string& holder) {
  return absl::FailedPreconditionError(
      absl::StrCat(folder, " is in use: another process saves there",
                   holder.empty() ? "" : absl::StrCat(" (", absl::CHexEscape(holder), ")")));
}

class FileLock final : public FolderLock {
 public:
  // Opens the folder and its lock file.
  static absl::StatusOr<std::unique_ptr<FileLock>> Open(const std::string& folder) {
    std::unique_ptr<FileLock> lock(new FileLock(folder));
    lock->folder_fd_ = LockedFd(
        [&] { return ScopedFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); });
    absl::StatusOr<LockedFd> file =
        lock->folder_fd_.valid() ? lock->OpenFile() : ErrnoStatus(errno);
    if (!file.ok()) {
      return absl::UnknownError(absl::StrCat("cannot create the lock file ", folder, "/", kFileName,
                                             ": ", file.status().message()));
    }
    const MutexLock asking(&lock->asking_);
    lock->file_fd_ = *std::move(file);
    return lock;
  }

  // Returns false while another process has one of the two. Not every file system locks folders.
  absl::StatusOr<bool> Try() {
    if (!TryToLock(folder_fd_).value_or(true)) return false;
    const MutexLock asking(&asking_);
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const bool locked, TryToLock(file_fd_));
      if (locked && IsInPlace(file_fd_)) NameHolder(file_fd_);
      if (!locked || IsInPlace(file_fd_)) return locked;
      // The file was deleted while it was waited for, and its holder may have another one.
      TESSERA_ASSIGN_OR_RETURN(file_fd_, OpenFile());
    }
  }

  absl::Status Check() const override {
    if (!folder_fd_.valid()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder_, ": a forked process does not have the lock"));
    }
    const MutexLock lock(&mutex_);
    return lost_;
  }

  absl::Status Confirm() override {
    if (!folder_fd_.valid()) return Check();
    const MutexLock asking(&asking_);
    const absl::Status found = LockAgain();
    const MutexLock lock(&mutex_);
    return lost_ = found;
  }

  // Returns who has the lock, as far as it says so; empty otherwise.
  std::string holder() const {
    const MutexLock asking(&asking_);
    return HolderIn(file_fd_);
  }

  using FolderLock::set_warning;

 private:
  explicit FileLock(std::string folder) : folder_(std::move(folder)) {}

  absl::StatusOr<LockedFd> OpenFile() const {
    absl::Status error;
    LockedFd fd([&] {
      absl::StatusOr<ScopedFd> opened =
          OpenRegularFile(folder_fd_.get(), kFileName, O_RDWR | O_CREAT | O_NOFOLLOW);
      error = opened.status();
      return opened.ok() ? *std::move(opened) : ScopedFd();
    });
    TESSERA_RETURN_IF_ERROR(error);
    return fd;
  }
  // Writes this process into the file that it has locked, for the message of another one. A failure
  // does no harm.
  static void NameHolder(const LockedFd& fd) {
    const std::string holder = absl::StrCat(HolderName(), "\n", ProcessIdentity(getpid()));
    if (::ftruncate(fd.get(), 0) != 0) return;
    static_cast<void>(::pwrite(fd.get(), holder.data(), holder.size(), 0) < 0);
  }
  static std::string HolderIn(const LockedFd& fd) {
    std::string holder(kMaxHolderBytes, '\0');
    const ssize_t bytes = ::pread(fd.get(), holder.data(), holder.size(), 0);
    holder.resize(std::max<ssize_t>(bytes, 0));
    const std::pair<std::string, std::string> lines =
        absl::StrSplit(holder, absl::MaxSplits('\n', 1));
    // A new holder may not have replaced the previous holder's name yet.
    return IsKnownToBeDead(lines.second, "/proc") ? "" : lines.first;
  }
  // If the file was deleted, another process may have found the folder free, and locked a new file.
  absl::Status LockAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(asking_) {
    if (IsInPlace(file_fd_)) return absl::OkStatus();
    absl::StatusOr<LockedFd> fd = OpenFile();
    if (!fd.ok()) return absl::OkStatus();
    if (!TryToLock(*fd).value_or(true)) {
      return absl::FailedPreconditionError(absl::StrCat(folder_, "/", kFileName,
                                                        " was deleted or replaced, and ",
                                                        InUse(folder_, HolderIn(*fd)).message()));
    }
    NameHolder(*fd);
    file_fd_ = *std::move(fd);
    return absl::OkStatus();
  }
  bool IsInPlace(const LockedFd& fd) const {
    struct stat ours, there;
    return ::fstat(fd.get(), &ours) == 0 &&
           ::fstatat(folder_fd_.get(), kFileName, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  }

  const std::string folder_;
  LockedFd folder_fd_;
  mutable Mutex asking_;  // held while the file system is asked, which may not answer
  LockedFd file_fd_ ABSL_GUARDED_BY(asking_);  // replaced by LockAgain()
  mutable Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // as far as is known
};

absl::StatusOr<std::unique_ptr<FolderLock>> LockFile(const std::string& folder,
                                                     const FolderLock::Options& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, FileLock::Open(folder));
  const absl::Duration deadline = SteadyNow() + options.wait;
  absl::StatusOr<bool> locked = lock->Try();
  if (locked.ok() && !*locked && options.wait > absl::ZeroDuration() && options.on_wait) {
    options.on_wait(absl::StrCat("waiting up to ", absl::FormatDuration(options.wait),
                                 " for another process that saves to ", folder, " to end"));
  }
  while (locked.ok() && !*locked && SteadyNow() < deadline) {
    absl::SleepFor(kPollInterval);
    locked = lock->Try();
  }
  if (!locked.ok()) {
    lock->set_warning(absl::StrCat("WARNING: ", folder, " cannot be locked (",
                                   locked.status().message(),
                                   "): make sure that only one run at a time saves there"));
  } else if (!*locked) {
    return InUse(folder, lock->holder());
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

}  // namespace tessera
