#include "base/make_directories.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_calls.h"

namespace tessera {
namespace {

// "." of "a", "a/" of "a/b", "/" of "/a", "a/" of "a/b/".
std::string ParentOf(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : path.rfind('/', end);
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

int SyncDirectory(int at, const std::string& path, bool must_be_readable) {
  const int fd = openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES && !must_be_readable ? 0 : errno;
  const int error = SyncNames(fd);
  close(fd);
  return error;
}

}  // namespace

int MakeDirectories(int at, const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (prefix.empty() || prefix.back() == '/') continue;  // "/", "a//b"
    const bool made = mkdirat(at, prefix.c_str(), 0777) == 0;
    if (!made && errno != EEXIST) return errno;
    if (const int error = SyncDirectory(at, ParentOf(prefix), made); error != 0) return error;
  }
  struct stat info;
  if (fstatat(at, path.c_str(), &info, 0) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : EEXIST;
}

}  // namespace tessera
