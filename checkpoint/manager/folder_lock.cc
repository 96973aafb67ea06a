#include "checkpoint/manager/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"

namespace tessera::ckpt {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

class FileLock final : public FolderLock {
 public:
  FileLock(int fd, std::string warning) : FolderLock(std::move(warning)), fd_(fd) {}
  ~FileLock() override { ::close(fd_); }

 private:
  const int fd_;
};

// 0, or the error.
int TryToLock(int fd) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<FolderLock>> LockFile(const std::string& folder,
                                                     const FolderLock::Options& options) {
  const std::string path = absl::StrCat(folder, "/", FolderLock::kFileName);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) {
    return absl::UnknownError(absl::StrCat("cannot create the lock file ", path, ": ",
                                           std::generic_category().message(errno)));
  }
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
    ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in use: another process saves there"));
  }
  std::string warning;
  if (error != 0) {
    warning = absl::StrCat("WARNING: ", folder, " cannot be locked (",
                           std::generic_category().message(error),
                           "): make sure that only one run at a time saves there");
  }
  return std::make_unique<FileLock>(fd, std::move(warning));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Acquire(std::unique_ptr<Storage> storage,
                                                                const Options& options) {
  const std::optional<std::string> folder = storage->LocalPath("");
  if (folder.has_value()) return LockFile(*folder, options);
  return AcquireLease(std::move(storage), options);
}

}  // namespace tessera::ckpt
