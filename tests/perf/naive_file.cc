#include "tests/perf/naive_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tests/perf/harness.h"

namespace tessera {
namespace {

// Transfers all buffers, one after the other. Returns bytes per second.
template <typename Operation>
absl::StatusOr<double> TransferBuffers(const std::string& path, int flags,
                                       std::span<const std::span<std::byte>> buffers,
                                       const Operation& operation) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;
  const double begin = Now();
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  bool ok = fd >= 0;
  uint64_t bytes = 0;
  for (const std::span<std::byte> buffer : buffers) {
    for (size_t done = 0; ok && done < buffer.size();) {
      const ssize_t n =
          operation(fd, buffer.data() + done, std::min(kMostAtOnce, buffer.size() - done));
      if (n < 0 && errno == EINTR) continue;
      ok = n > 0;
      done += ok ? n : 0;
    }
    bytes += buffer.size();
  }
  if (ok && flags != O_RDONLY) ok = fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (ok) return static_cast<double>(bytes) / (Now() - begin);
  return absl::UnavailableError(absl::StrCat(path, ": ", std::generic_category().message(error)));
}

}  // namespace

NaiveFile::~NaiveFile() { unlink(path_.c_str()); }

absl::StatusOr<double> NaiveFile::Save() const {
  return TransferBuffers(
      path_, O_WRONLY | O_CREAT | O_TRUNC, buffers_,
      [](int fd, std::byte* data, size_t size) { return write(fd, data, size); });
}

absl::StatusOr<double> NaiveFile::Load() const {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (fd >= 0) close(fd);
  return TransferBuffers(path_, O_RDONLY, buffers_,
                         [](int fd, std::byte* data, size_t size) { return read(fd, data, size); });
}

}  // namespace tessera
