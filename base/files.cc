#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/status_macros.h"

namespace tessera {

bool MatchesGlob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), /*flags=*/0) == 0;
}

int AboveStandardStreams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const ScopedFd standard(fd);
  return fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

absl::StatusOr<ScopedFd> OpenRegularFile(int at, const std::string& path, int flags) {
  const auto error = [&] {
    return (flags & O_ACCMODE) == O_RDONLY ? ReadErrnoStatus(errno) : ErrnoStatus(errno);
  };
  // Without O_NONBLOCK, a pipe would wait for its other end.
  int opened;
  do {
    opened = openat(at, path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  } while (opened < 0 && errno == EINTR);
  ScopedFd fd(AboveStandardStreams(opened));
  struct stat info;
  if (fd.valid() && fstat(fd.get(), &info) != 0) return error();
  // ENXIO: a pipe without a reader, a socket, a device. EISDIR: a folder, for writing.
  if (fd.valid() ? !S_ISREG(info.st_mode) : errno == ENXIO || errno == EISDIR || errno == EINVAL) {
    return absl::InvalidArgumentError("not a regular file");
  }
  if (!fd.valid()) return error();
  return fd;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const ScopedFd fd, OpenRegularFile(AT_FDCWD, path, O_RDONLY));
  std::string bytes;
  char block[1 << 16];
  ssize_t count = 0;
  while ((count = read(fd.get(), block, sizeof(block))) != 0) {
    if (count > 0) {
      bytes.append(block, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return ReadErrnoStatus(errno);
    }
  }
  return bytes;
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

std::string BootId() {
  std::string id = ReadWholeFile("/proc/sys/kernel/random/boot_id").value_or("");
  return id.substr(0, id.find('\n'));
}

namespace {

// Returns "." of "a", "a/" of "a/b", "/" of "/a", "a/" of "a/b/".
std::string ParentOf(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : path.rfind('/', end);
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

absl::Status SyncDirectory(int at, const std::string& path, bool must_be_readable) {
  const ScopedFd fd(openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) return SyncNames(fd.get());
  return errno == EACCES && !must_be_readable ? absl::OkStatus() : ErrnoStatus(errno);
}

}  // namespace

absl::Status MakeDirectories(int at, const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (prefix.empty() || prefix.back() == '/') continue;  // "/", "a//b"
    const bool made = mkdirat(at, prefix.c_str(), 0777) == 0;
    if (!made && errno != EEXIST) return ErrnoStatus(errno);
    TESSERA_RETURN_IF_ERROR(SyncDirectory(at, ParentOf(prefix), /*must_be_readable=*/made));
  }
  struct stat info;
  if (fstatat(at, path.c_str(), &info, 0) != 0) return ErrnoStatus(errno);
  return ErrnoStatus(S_ISDIR(info.st_mode) ? 0 : EEXIST);
}

namespace {

// Opens the same pipe or terminal again, non-blocking. -1 where that is impossible, as for sockets,
// and for regular files, which never block: the next write continues at the offset of `fd`.
int OpenNonblocking(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || S_ISREG(info.st_mode)) return -1;
  std::array<char, 32> path = {};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  return open(path.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

ssize_t WriteSome(int fd, int nonblocking, std::string_view text) {
  if (nonblocking >= 0) return write(nonblocking, text.data(), text.size());
  const ssize_t sent = send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  // A file, or a pipe that cannot be opened again, has room for this much when it is ready.
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
