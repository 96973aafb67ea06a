#include "base/file_descriptor.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/files.h"

namespace tessera {
namespace {

// Returns the error of the last system call.
absl::Status FileError(std::string_view action, const std::string& path) {
  return Named(action, path, ErrnoStatus(errno));
}

std::string_view TakeDigits(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() && std::isdigit(static_cast<unsigned char>(text[length]))) ++length;
  const std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits;
}

std::string_view WithoutLeadingZeros(std::string_view digits) {
  return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
}

// Returns a pattern with the path of the home folder that it begins with, as "~" or "~user".
std::string WithHome(std::string pattern) {
  if (!pattern.starts_with('~')) return pattern;
  const std::string home = pattern.substr(0, pattern.find('/'));
  glob_t found = {};
  if (glob(home.c_str(), GLOB_TILDE, nullptr, &found) == 0) {
    pattern.replace(0, home.size(), found.gl_pathv[0]);
  }
  globfree(&found);
  return pattern;
}

// Returns a shell pattern in which the longest path at the beginning that exists stands for itself.
std::string WithPathEscaped(const std::string& pattern) {
  size_t end = pattern.size();
  while (end > 0 && access(pattern.substr(0, end).c_str(), F_OK) != 0) {
    const size_t slash = pattern.rfind('/', end - 1);
    end = slash == pattern.npos ? 0 : slash;
  }
  std::string escaped;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i < end && std::string_view("*?[\\").find(pattern[i]) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += pattern[i];
  }
  return escaped;
}

}  // namespace

absl::StatusOr<FileDescriptor> FileDescriptor::Open(const std::string& path, int flags) {
  absl::StatusOr<ScopedFd> fd = OpenRegularFile(AT_FDCWD, path, flags);
  if (!fd.ok()) return Named("cannot open", path, fd.status());
  return FileDescriptor(*std::move(fd), path);
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenForReading(const std::string& path) {
  return Open(path, O_RDONLY);
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenForAppending(const std::string& path) {
  return Open(path, O_WRONLY | O_CREAT | O_APPEND);
}

absl::StatusOr<FileDescriptor> FileDescriptor::OpenFolder(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return FileError("cannot open", path);
  return FileDescriptor(std::move(fd), path);
}

absl::Status FileDescriptor::TryLock() const {
  return flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 ? absl::OkStatus()
                                                  : FileError("cannot lock", path_);
}

absl::Status FileDescriptor::Sync() const {
  return Named("cannot sync", path_, SyncNames(fd_.get()));
}

absl::Status FileDescriptor::SyncContents() const {
  return Named("cannot sync", path_, tessera::SyncContents(fd_.get()));
}

absl::Status FileDescriptor::Append(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = write(fd_.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("cannot write", path_);
    text.remove_prefix(n);
  }
  return absl::OkStatus();
}

bool FileDescriptor::IsAtItsPath() const {
  struct stat ours, there;
  return fstat(fd_.get(), &ours) == 0 && stat(path_.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

absl::StatusOr<int64_t> FileDescriptor::ReadAt(int64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd_.get(), out.data() + done, out.size() - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Named(absl::StrCat("cannot read at offset ", offset + done, " of"), path_,
                   ReadErrnoStatus(errno));
    }
    if (n == 0) break;
    done += n;
  }
  return done;
}

absl::StatusOr<FileDescriptor::Facts> FileDescriptor::Examine() const {
  struct stat info;
  if (fstat(fd_.get(), &info) != 0) return FileError("cannot examine", path_);
  return Facts{.size_bytes = info.st_size,
               .modified_ns = info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
}

absl::StatusOr<int64_t> FileDescriptor::SizeBytes() const {
  const absl::StatusOr<Facts> facts = Examine();
  if (!facts.ok()) return facts.status();
  return facts->size_bytes;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  absl::StatusOr<FileDescriptor> file = FileDescriptor::OpenForReading(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<int64_t> size_bytes = file->SizeBytes();
  if (!size_bytes.ok()) return size_bytes.status();
  if (*size_bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", *size_bytes, " bytes, expected at most ", max_bytes));
  }
  std::string contents(*size_bytes, '\0');
  const absl::StatusOr<int64_t> read =
      file->ReadAt(0, std::span(reinterpret_cast<uint8_t*>(contents.data()), contents.size()));
  if (!read.ok()) return read.status();
  contents.resize(*read);
  return contents;
}

bool NaturalLess(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    const std::string_view digits_a = TakeDigits(a), digits_b = TakeDigits(b);
    if (digits_a.empty() != digits_b.empty()) {
      // One has a number where the other has none: restore the digits and compare characters.
      a = std::string_view(a.data() - digits_a.size(), a.size() + digits_a.size());
      b = std::string_view(b.data() - digits_b.size(), b.size() + digits_b.size());
    } else if (!digits_a.empty()) {
      const std::string_view value_a = WithoutLeadingZeros(digits_a);
      const std::string_view value_b = WithoutLeadingZeros(digits_b);
      if (value_a.size() != value_b.size()) return value_a.size() < value_b.size();
      if (value_a != value_b) return value_a < value_b;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // equal except for leading zeros
}

absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  glob_t matches = {};
  const int result =
      glob(WithPathEscaped(WithHome(pattern)).c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> paths;
  if (result == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (paths.empty()) return absl::NotFoundError(absl::StrCat("no file matches \"", pattern, "\""));
  std::sort(paths.begin(), paths.end(), NaturalLess);
  return paths;
}

}  // namespace tessera
