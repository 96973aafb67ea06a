#include "base/read_whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace tessera {

std::optional<std::string> ReadWholeFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string bytes;
  char block[1 << 16];
  ssize_t count = 0;
  while ((count = read(fd, block, sizeof(block))) != 0) {
    if (count > 0) {
      bytes.append(block, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      break;
    }
  }
  const int error = errno;
  close(fd);
  errno = error;
  if (count < 0) return std::nullopt;
  return bytes;
}

}  // namespace tessera
