#include "trainer/state/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Acquire(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return absl::UnknownError(absl::StrCat("cannot open the folder ", folder, ": ",
                                           std::generic_category().message(errno)));
  }
  std::unique_ptr<FolderLock> lock(new FolderLock(fd));
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in use: another process saves there"));
  }
  return lock;
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace tessera
