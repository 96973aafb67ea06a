#include "trainer/metrics/input_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errno_status.h"
#include "base/files.h"

namespace tessera {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 18;

// Opens a pipe that somebody writes to, whose data may be waited for; -1 for anything else.
// Invalid for anything but a pipe.
ScopedFd OpenPipe(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info;
  const bool is_pipe = fd.valid() && fstat(fd.get(), &info) == 0 && S_ISFIFO(info.st_mode) &&
                       fcntl(fd.get(), F_SETFL, 0) == 0;
  return is_pipe ? std::move(fd) : ScopedFd();
}

}  // namespace

InputStream::InputStream(const std::string& path, bool may_be_pipe) : path_(path) {
  absl::StatusOr<ScopedFd> fd = OpenRegularFile(AT_FDCWD, path, O_RDONLY);
  if (fd.ok()) {
    fd_ = *std::move(fd);
  } else if (absl::IsInvalidArgument(fd.status()) && may_be_pipe) {
    fd_ = OpenPipe(path);
  }
  if (!fd_.valid()) status_ = Named("cannot read", path, fd.status());
}

bool InputStream::Fill() {
  if (!status_.ok()) return false;
  buffer_.erase(0, at_);
  at_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + kChunkBytes);
  ssize_t count = 0;
  do {
    count = read(fd_.get(), buffer_.data() + old, kChunkBytes);
  } while (count < 0 && errno == EINTR);
  if (count < 0) status_ = Named("cannot read", path_, ReadErrnoStatus(errno));
  buffer_.resize(old + std::max<ssize_t>(count, 0));
  return count > 0;
}

std::string_view InputStream::Peek(size_t bytes) {
  while (buffer_.size() - at_ < bytes && Fill()) {
  }
  return std::string_view(buffer_).substr(at_, bytes);
}

bool InputStream::Read(uint64_t bytes, std::string& data) {
  while (bytes > 0) {
    const std::string_view chunk = Peek(std::min<uint64_t>(bytes, kChunkBytes));
    if (chunk.empty()) return false;
    data += chunk;
    at_ += chunk.size();
    bytes -= chunk.size();
  }
  return true;
}

bool InputStream::Skip(uint64_t bytes) {
  while (bytes > 0) {
    const size_t chunk = Peek(std::min<uint64_t>(bytes, kChunkBytes)).size();
    if (chunk == 0) return false;
    at_ += chunk;
    bytes -= chunk;
  }
  return true;
}

bool InputStream::ReadLine(std::string& line, bool& complete) {
  line.clear();
  complete = false;
  bool any = false;
  while (true) {
    const std::string_view rest = Peek(1).empty() ? "" : std::string_view(buffer_).substr(at_);
    if (rest.empty()) return any;
    any = true;
    const size_t end = std::min(rest.find('\n'), rest.size());
    line += rest.substr(0, std::min(end, kMaxLineBytes - line.size()));
    complete = end < rest.size();
    at_ += end + (complete ? 1 : 0);
    if (complete) return true;
  }
}

}  // namespace tessera
