#include "base/file_calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "base/errno_status.h"

namespace tessera {
namespace {

std::atomic<FileCallInterceptor*> interceptor = nullptr;

int Repeat(absl::FunctionRef<int()> call) {
  while (call() != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

std::optional<struct stat> StatOf(int directory_fd, const char* name) {
  struct stat info;
  if (fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return info;
}

absl::Status Sync(int fd, absl::FunctionRef<int()> call) {
  FileCallInterceptor* const between = interceptor.load(std::memory_order_acquire);
  return ErrnoStatus(between == nullptr ? call() : between->Sync(fd, call));
}

int Rename(absl::FunctionRef<int()> call) {
  FileCallInterceptor* const between = interceptor.load(std::memory_order_acquire);
  return between == nullptr ? call() : between->Rename(call);
}

int Replace(int from_directory_fd, const char* from, int to_directory_fd, const char* to) {
  return Rename([&] {
    return Repeat([&] { return renameat(from_directory_fd, from, to_directory_fd, to); });
  });
}

int RenameIfFree(int from_directory_fd, const char* from, int to_directory_fd, const char* to) {
  const std::optional<struct stat> before = StatOf(from_directory_fd, from);
  // A network file system that lost the reply to a request repeats it, and may report what the
  // repetition finds: the new name taken, or the old one gone. What has the new name decides.
  const auto settle = [&](int error) {
    const std::optional<struct stat> there = StatOf(to_directory_fd, to);
    if ((error != EEXIST && error != ENOENT) || !before.has_value() || !there.has_value() ||
        there->st_dev != before->st_dev || there->st_ino != before->st_ino) {
      return error;
    }
    if (!StatOf(from_directory_fd, from).has_value()) return 0;
    // Both names were there before, or are one; else a link has just been made.
    if (there->st_nlink <= before->st_nlink) return error;
    return Repeat([&] { return unlinkat(from_directory_fd, from, 0); });
  };
  int error = Rename([&] {
    return Repeat(
        [&] { return renameat2(from_directory_fd, from, to_directory_fd, to, RENAME_NOREPLACE); });
  });
  // Network file systems do not support the flag; an impossible request fails again below.
  if (error != EINVAL && error != ENOSYS) return settle(error);
  error = Rename([&] {
    return Repeat([&] { return linkat(from_directory_fd, from, to_directory_fd, to, 0); });
  });
  if (error == 0) return Repeat([&] { return unlinkat(from_directory_fd, from, 0); });
  if (error == EEXIST) return settle(error);
  // A directory, or a file system without links.
  if (StatOf(to_directory_fd, to).has_value()) return settle(EEXIST);
  return settle(Replace(from_directory_fd, from, to_directory_fd, to));
}

}  // namespace

absl::Status SyncContents(int fd) {
  // fdatasync includes the length, without which the data could not be read back.
  return Sync(fd, [&] { return Repeat([&] { return fdatasync(fd); }); });
}

absl::Status SyncNames(int directory_fd) {
  return Sync(directory_fd, [&] {
    const int error = Repeat([&] { return fsync(directory_fd); });
    return error == EINVAL || error == ENOTSUP ? 0 : error;
  });
}

absl::Status RenameName(int from_directory_fd, const char* from, int to_directory_fd,
                        const char* to) {
  return ErrnoStatus(Replace(from_directory_fd, from, to_directory_fd, to));
}

absl::Status RenameNameIfFree(int from_directory_fd, const char* from, int to_directory_fd,
                              const char* to) {
  return ErrnoStatus(RenameIfFree(from_directory_fd, from, to_directory_fd, to));
}

void SetFileCallInterceptor(FileCallInterceptor* new_interceptor) {
  interceptor.store(new_interceptor, std::memory_order_release);
}

}  // namespace tessera
