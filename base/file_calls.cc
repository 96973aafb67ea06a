#include "base/file_calls.h"

#include <stdio.h>
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

int RenameName(int from_directory_fd, const char* from, int to_directory_fd, const char* to,
               unsigned flags) {
  const auto call = [&] {
    return Repeat([&] {
      return flags == 0 ? renameat(from_directory_fd, from, to_directory_fd, to)
                        : renameat2(from_directory_fd, from, to_directory_fd, to, flags);
    });
  };
  FileCallInterceptor* const between = interceptor.load(std::memory_order_acquire);
  return between == nullptr ? call() : between->Rename(call);
}

void SetFileCallInterceptor(FileCallInterceptor* new_interceptor) {
  interceptor.store(new_interceptor, std::memory_order_release);
}

}  // namespace tessera
