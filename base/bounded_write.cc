#include "base/bounded_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace tessera {
namespace {

// Opens the same pipe, terminal or file again, non-blocking. -1 where that is impossible, as for
// sockets.
int OpenNonblocking(int fd) {
  std::array<char, 32> path = {};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  return open(path.data(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

ssize_t WriteSome(int fd, int nonblocking, std::string_view text) {
  if (nonblocking >= 0) return write(nonblocking, text.data(), text.size());
  const ssize_t sent = send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  // A pipe that cannot be opened again has room for this much when it is ready.
  return write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
}

}  // namespace

bool WriteBounded(int fd, std::string_view text, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  const int nonblocking = OpenNonblocking(fd);
  while (!text.empty()) {
    const auto left = (until - std::chrono::steady_clock::now()) / std::chrono::milliseconds(1);
    pollfd ready = {fd, POLLOUT, 0};
    const int some = poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) break;
    const ssize_t written = WriteSome(fd, nonblocking, text);
    if (written < 0 && errno != EAGAIN && errno != EINTR) break;
    if (written > 0) text.remove_prefix(written);
    if (written < 0 && left <= 0) break;
  }
  if (nonblocking >= 0) close(nonblocking);
  return text.empty();
}

}  // namespace tessera
