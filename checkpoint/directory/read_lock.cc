#include "checkpoint/internal/read_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/scoped_fd.h"
#include "checkpoint/directory/removal.h"
#include "storage/lock/locked_fd.h"

namespace tessera::ckpt {
namespace {

// Opens the directory of a checkpoint, whose lock is shared while the checkpoint is read, and
// exclusive while it is deleted. Not valid where it is not on this machine, or cannot be opened.
LockedFd OpenDirectory(const Storage& storage, std::string_view directory) {
  const std::optional<std::string> path = storage.LocalPath(directory);
  if (!path.has_value()) return LockedFd();
  return LockedFd(
      [&] { return ScopedFd(::open(path->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); });
}

// Returns 0, or the error.
int TryToLock(const LockedFd& fd, int operation) {
  while (::flock(fd.get(), operation | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

void UnlessRead(const Storage& storage, std::string_view dir, const std::function<void()>& call) {
  const LockedFd fd = OpenDirectory(storage, dir);
  const bool is_read = fd.valid() && TryToLock(fd, LOCK_EX) == EWOULDBLOCK;
  if (!is_read) call();
}

ReadLock::ReadLock(const Storage& storage, std::string_view checkpoint_dir) {
  LockedFd fd = OpenDirectory(storage, checkpoint_dir);
  if (!fd.valid()) return;
  // While the checkpoint is being deleted there is no lock, and soon no manifest.
  if (TryToLock(fd, LOCK_SH) == 0) fd_ = std::make_shared<const LockedFd>(std::move(fd));
}

bool ReadLock::holds() const { return fd_ != nullptr && fd_->valid(); }

}  // namespace tessera::ckpt
