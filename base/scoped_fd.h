#ifndef TESSERA_BASE_SCOPED_FD_H_
#define TESSERA_BASE_SCOPED_FD_H_

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tessera {

// Owns a file descriptor.
class ScopedFd {
 public:
  ScopedFd() = default;
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(ScopedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScopedFd& operator=(ScopedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ScopedFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor in any case. Returns 0 or an errno, as the system calls around it.
  int Close() {
    if (fd_ < 0) return 0;
    // Linux has released the descriptor even when close() fails, EINTR included: never retry.
    const int result = ::close(std::exchange(fd_, -1));
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_BASE_SCOPED_FD_H_
