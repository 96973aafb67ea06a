#include "base/file_in_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace tessera {

absl::StatusOr<ScopedFd> FileInFolder::Open() {
  struct stat status = {};
  if (!folder_.valid() || ::fstat(folder_.get(), &status) != 0 || status.st_nlink == 0) {
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    folder_ = ScopedFd(AboveStandardStreams(::open(path_.parent_path().c_str(), kFlags)));
  }
  return folder_.valid() ? OpenRegularFile(folder_.get(), path_.filename(), O_RDONLY)
                         : OpenRegularFile(AT_FDCWD, path_, O_RDONLY);
}

std::string FileInFolder::MovedTo() const {
  struct stat ours, there;
  if (!folder_.valid() || ::fstat(folder_.get(), &ours) != 0 || ours.st_nlink == 0 ||
      ::stat(path_.parent_path().c_str(), &there) != 0 ||
      (ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)) {
    return "";
  }
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", folder_.get()), error);
}

}  // namespace tessera
