#include "checkpoint/manager/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"

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

}  // namespace

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Acquire(const std::string& folder) {
  return Acquire(folder, Options());
}

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Acquire(const std::string& folder,
                                                                const Options& options) {
  const std::string path = absl::StrCat(folder, "/", kFileName);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) {
    return absl::UnknownError(absl::StrCat("cannot create the lock file ", path, ": ",
                                           std::generic_category().message(errno)));
  }
  std::unique_ptr<FolderLock> lock(new FolderLock(fd));
  const absl::Duration deadline = SteadyNow() + options.wait;
  int error = TryToLock(fd);
  if (error == EWOULDBLOCK && options.wait > absl::ZeroDuration() && options.on_wait) {
    options.on_wait(absl::StrCat("waiting up to ", absl::FormatDuration(options.wait),
                                 " for another process that saves to ", folder, " to end"));
  }
  while (error == EWOULDBLOCK && SteadyNow() < deadline) {
    absl::SleepFor(kPollInterval);
    error = TryToLock(fd);
  }
  if (error == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in use: another process saves there"));
  }
  if (error != 0) {
    lock->warning_ = absl::StrCat("WARNING: ", folder, " cannot be locked (",
                                  std::generic_category().message(error),
                                  "): make sure that only one run at a time saves there");
  }
  return lock;
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace tessera::ckpt
