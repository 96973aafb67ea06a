#include "checkpoint/internal/read_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/directory/removal.h"

namespace tessera::ckpt {
namespace {

// Opens the directory of a checkpoint, whose lock is shared while the checkpoint is read, and
// exclusive while it is deleted. -1 where it is not on this machine, or cannot be opened.
int OpenDirectory(const Storage& storage, std::string_view directory) {
  const std::optional<std::string> path = storage.LocalPath(directory);
  return path.has_value() ? ::open(path->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

// Returns 0, or the error.
int TryToLock(int fd, int operation) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

void UnlessRead(const Storage& storage, std::string_view dir, const std::function<void()>& call) {
  const int fd = OpenDirectory(storage, dir);
  const bool is_read = fd >= 0 && TryToLock(fd, LOCK_EX) == EWOULDBLOCK;
  if (!is_read) call();
  if (fd >= 0) ::close(fd);
}

ReadLock::ReadLock(const Storage& storage, std::string_view checkpoint_dir)
    : fd_(OpenDirectory(storage, checkpoint_dir)) {
  // While the checkpoint is being deleted there is no lock, and soon no manifest.
  if (fd_ >= 0 && TryToLock(fd_, LOCK_SH) != 0) ::close(std::exchange(fd_, -1));
}

ReadLock::~ReadLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tessera::ckpt
