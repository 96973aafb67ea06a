#ifndef TESSERA_STORAGE_LOCK_LOCKED_FD_H_
#define TESSERA_STORAGE_LOCK_LOCKED_FD_H_

#include <sys/types.h>

#include <utility>

#include "absl/functional/function_ref.h"
#include "base/scoped_fd.h"

namespace tessera {

// Owns the descriptor of a file or folder that is locked by flock(). The lock belongs to all copies
// of the descriptor, and fork() makes one: a child that lives longer than the process would keep
// the lock. Therefore a child closes the descriptor as soon as it begins. Programs that a process
// executes do not get it.
//
// Thread-safe as an int is. fork() may be called at any time, and waits for no file server.
class LockedFd {
 public:
  LockedFd() = default;
  // Calls open(), and again if another thread forks meanwhile.
  explicit LockedFd(absl::FunctionRef<ScopedFd()> open);
  LockedFd(LockedFd&& other) noexcept = default;
  LockedFd& operator=(LockedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~LockedFd();

  // Returns false in a child, too.
  bool valid() const;
  int get() const { return fd_.get(); }

 private:
  ScopedFd fd_;
  pid_t owner_ = 0;  // the process in which it is open
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_LOCK_LOCKED_FD_H_
