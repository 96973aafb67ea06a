#include "base/file_calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tessera {
namespace {

std::atomic<FileCallInterceptor*> interceptor = nullptr;

int Repeat(absl::FunctionRef<int()> call) {
  while (call() != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

int Sync(int fd, absl::FunctionRef<int()> call) {
  FileCallInterceptor* const between = interceptor.load(std::memory_order_acquire);
  return between == nullptr ? call() : between->Sync(fd, call);
}

int Rename(absl::FunctionRef<int()> call) {
  FileCallInterceptor* const between = interceptor.load(std::memory_order_acquire);
  return between == nullptr ? call() : between->Rename(call);
}

}  // namespace

int SyncContents(int fd) {
  // fdatasync includes the length, without which the data could not be read back.
  return Sync(fd, [&] { return Repeat([&] { return fdatasync(fd); }); });
}

int SyncNames(int directory_fd) {
  return Sync(directory_fd, [&] {
    const int error = Repeat([&] { return fsync(directory_fd); });
    return error == EINVAL || error == ENOTSUP ? 0 : error;
  });
}

int RenameName(int from_directory_fd, const char* from, int to_directory_fd, const char* to) {
  return Rename([&] {
    return Repeat([&] { return renameat(from_directory_fd, from, to_directory_fd, to); });
  });
}

int RenameNameIfFree(int from_directory_fd, const char* from, int to_directory_fd, const char* to) {
  int error = Rename([&] {
    return Repeat(
        [&] { return renameat2(from_directory_fd, from, to_directory_fd, to, RENAME_NOREPLACE); });
  });
  // Network file systems do not support the flag; an impossible request fails again below.
  if (error != EINVAL && error != ENOSYS) return error;
  error = Rename([&] {
    return Repeat([&] { return linkat(from_directory_fd, from, to_directory_fd, to, 0); });
  });
  if (error == 0) return Repeat([&] { return unlinkat(from_directory_fd, from, 0); });
  if (error == EEXIST) return error;
  // A directory, or a file system without links.
  struct stat info;
  if (fstatat(to_directory_fd, to, &info, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return RenameName(from_directory_fd, from, to_directory_fd, to);
}

void SetFileCallInterceptor(FileCallInterceptor* new_interceptor) {
  interceptor.store(new_interceptor, std::memory_order_release);
}

}  // namespace tessera
