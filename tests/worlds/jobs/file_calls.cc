// The C library's calls on files, with faults where they concern the simulated disk. They take the
// place of the C library's for the whole program.

// Defines what the checked variants of the functions would define again.
#undef _FORTIFY_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/scheduler.h"
#include "tests/worlds/jobs/site.h"

namespace tessera::simulation {
namespace {

// Calls that read can fail; those that change something can also do so without saying it.
constexpr FaultSet kReads = Only(FaultKind::kError);
constexpr FaultSet kWrites = Only(FaultKind::kError) | Only(FaultKind::kLostReply);
constexpr FaultSet kNames = kWrites | Only(FaultKind::kTwice);

bool IsSimulated() {
  const Thread& thread = Scheduler::Get().current();
  return thread.process != kWorld && thread.uninterrupted == 0;
}

template <typename Call>
auto Do(const char* operation, const std::optional<std::string>& name, FaultSet possible, Call call)
    -> decltype(call()) {
  if (!name.has_value() || !IsSimulated()) return call();
  const FaultKind fault = Faults::Get().Next(absl::StrCat(operation, " ", *name), possible);
  if (fault == FaultKind::kError) {
    errno = EIO;
    return -1;
  }
  auto result = call();
  if (fault == FaultKind::kTwice && Disk::Get().options().renames_by_link) result = call();
  const int error = errno;
  Faults::Get().After(fault);
  errno = error;
  if (fault == FaultKind::kLostReply && result >= 0) {
    errno = EIO;
    return -1;
  }
  return result;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int OpenAt(int directory, const char* path, int flags, mode_t mode) {
  static const auto real = Real<int (*)(int, const char*, int, ...)>("openat");
  const std::optional<std::string> name = Disk::Get().NameOf(directory, path);
  if (!name.has_value() || !IsSimulated()) return real(directory, path, flags, mode);
  if ((flags & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  const bool creates = (flags & O_CREAT) != 0;
  const auto open = [&] { return real(directory, path, flags, mode); };
  // A file that was created without an answer is open nowhere.
  const FaultSet possible = creates ? kNames & ~Only(FaultKind::kLostReply) : kReads;
  const int fd = (flags & O_PATH) != 0 ? open() : Do("open", name, possible, open);
  if (fd >= 0) Disk::Get().Opened(fd, *name);
  return fd;
}

bool IsFull(uint64_t bytes) {
  const Disk& disk = Disk::Get();
  const bool is_limited = disk.options().capacity_bytes < (uint64_t{1} << 40);
  return is_limited && disk.FreeBytes() < bytes;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

int Sync(const char* function, int fd) {
  const auto real = Real<int (*)(int)>(function);
  const std::optional<std::string> name = Disk::Get().NameOf(fd);
  return Do("sync", name, kWrites, [&] {
    const int result = real(fd);
    if (result == 0 && name.has_value() && IsSimulated()) Disk::Get().Synced(fd);
    return result;
  });
}

}  // namespace
}  // namespace tessera::simulation

using namespace tessera::
    simulation;  // NOLINT(google-build-using-namespace): names of the C library

extern "C" {

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(directory, path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenAt(AT_FDCWD, path, flags, mode);
}
int __openat_2(int directory, const char* path, int flags) {
  return OpenAt(directory, path, flags, 0);
}
int __open_2(const char* path, int flags) { return OpenAt(AT_FDCWD, path, flags, 0); }

int close(int fd) {
  static const auto real = Real<decltype(&close)>("close");
  Disk::Get().Closed(fd);
  return real(fd);
}

int closedir(DIR* stream) {
  static const auto real = Real<decltype(&closedir)>("closedir");
  Disk::Get().Closed(dirfd(stream));
  return real(stream);
}

ssize_t pread(int fd, void* out, size_t bytes, off_t offset) {
  static const auto real = Real<decltype(&pread)>("pread");
  return Do("read", Disk::Get().NameOf(fd), kReads, [&] { return real(fd, out, bytes, offset); });
}
ssize_t __pread_chk(int fd, void* out, size_t bytes, off_t offset, size_t) {
  return pread(fd, out, bytes, offset);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto real = Real<decltype(&pwrite)>("pwrite");
  const std::optional<std::string> name = Disk::Get().NameOf(fd);
  return Do("write", name, kWrites, [&]() -> ssize_t {
    struct stat info;
    const bool grows = fstat(fd, &info) == 0 && offset + off_t(bytes) > info.st_size;
    if (name.has_value() && grows && IsSimulated() && IsFull(bytes)) {
      errno = ENOSPC;
      return -1;
    }
    return real(fd, data, bytes, offset);
  });
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  static const auto real = Real<decltype(&fallocate)>("fallocate");
  const std::optional<std::string> name = Disk::Get().NameOf(fd);
  return Do("reserve", name, kWrites, [&] {
    if (name.has_value() && IsSimulated() && IsFull(bytes)) {
      errno = ENOSPC;
      return -1;
    }
    return real(fd, mode, offset, bytes);
  });
}
int ftruncate(int fd, off_t bytes) noexcept {
  static const auto real = Real<decltype(&ftruncate)>("ftruncate");
  return Do("cut", Disk::Get().NameOf(fd), kWrites, [&] { return real(fd, bytes); });
}
int fsync(int fd) { return Sync("fsync", fd); }
int fdatasync(int fd) { return Sync("fdatasync", fd); }

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned int flags) noexcept {
  static const auto real = Real<decltype(&renameat2)>("renameat2");
  const std::optional<std::string> name = Disk::Get().NameOf(from_directory, from);
  if (name.has_value() && IsSimulated() && flags != 0 && Disk::Get().options().renames_by_link) {
    errno = EINVAL;
    return -1;
  }
  return Do("rename", name, kNames,
            [&] { return real(from_directory, from, to_directory, to, flags); });
}
int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  static const auto real = Real<decltype(&renameat)>("renameat");
  return Do("rename", Disk::Get().NameOf(from_directory, from), kNames,
            [&] { return real(from_directory, from, to_directory, to); });
}
int linkat(int from_directory, const char* from, int to_directory, const char* to,
           int flags) noexcept {
  static const auto real = Real<decltype(&linkat)>("linkat");
  return Do("link", Disk::Get().NameOf(to_directory, to), kNames,
            [&] { return real(from_directory, from, to_directory, to, flags); });
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  static const auto real = Real<decltype(&unlinkat)>("unlinkat");
  return Do("delete", Disk::Get().NameOf(directory, path), kNames,
            [&] { return real(directory, path, flags); });
}
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  static const auto real = Real<decltype(&mkdirat)>("mkdirat");
  return Do("make", Disk::Get().NameOf(directory, path), kNames,
            [&] { return real(directory, path, mode); });
}
int flock(int fd, int operation) noexcept {
  static const auto real = Real<decltype(&flock)>("flock");
  return Do("lock", Disk::Get().NameOf(fd), 0, [&] { return real(fd, operation); });
}
int fstatvfs(int fd, struct statvfs* info) noexcept {
  static const auto real = Real<decltype(&fstatvfs)>("fstatvfs");
  const int result = real(fd, info);
  if (result == 0 && Disk::Get().NameOf(fd).has_value()) {
    info->f_frsize = 1;
    info->f_bavail = Disk::Get().FreeBytes();
  }
  return result;
}

}  // extern "C"
