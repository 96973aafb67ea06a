#include "base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file_calls.h"
#include "base/files.h"
#include "base/text.h"

namespace tessera {
namespace {

// Leaves room for the suffix of the temporary name: names have at most 255 bytes.
constexpr size_t kMaxKeptNameBytes = 200;

absl::Status PathError(std::string_view action, const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", View(action), " ", path));
}

// 64 random bits: processes on other machines may write to the same directory.
std::string TemporaryName(const std::string& name) {
  std::random_device random;
  const uint64_t bits = uint64_t{random()} << 32 | random();
  return absl::StrFormat("%s.tmp-%016x", name.substr(0, kMaxKeptNameBytes), bits);
}

}  // namespace

FileReplacement::FileReplacement(std::string path, std::string name, int directory_fd)
    : path_(std::move(path)), name_(std::move(name)), directory_fd_(directory_fd) {}

absl::StatusOr<std::unique_ptr<FileReplacement>> FileReplacement::Create(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name.empty() || name == "." || name == "..") return PathError("create", path, EISDIR);
  // Opened before anything is written: a directory that cannot be synced later is an error here.
  const int directory_fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return PathError("open the directory of", path, errno);
  std::unique_ptr<FileReplacement> file(new FileReplacement(path, std::move(name), directory_fd));
  if (absl::Status status = file->OpenTemporary(); !status.ok()) return status;
  return file;
}

absl::Status FileReplacement::OpenTemporary() {
  // mkstemp would create private files, but these must have the permissions of the umask.
  constexpr int kAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    std::string temporary = TemporaryName(name_);
    fd_ = OpenRegularFile(directory_fd_, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (fd_ >= 0) {
      temporary_ = std::move(temporary);
      return absl::OkStatus();
    }
    const bool again = errno == EEXIST || errno == EINTR;
    if (!again || attempt == kAttempts) return Error("create a temporary file for", errno);
  }
}

FileReplacement::~FileReplacement() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlinkat(directory_fd_, temporary_.c_str(), 0);
  close(directory_fd_);
}

absl::Status FileReplacement::Error(std::string_view action, int error) const {
  return PathError(action, path_, error);
}

absl::Status FileReplacement::Append(std::span<const std::byte> bytes) {
  if (absl::Status status = WriteAt(size_bytes_, bytes); !status.ok()) return status;
  size_bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status FileReplacement::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error("write", errno);
    if (n == 0) return Error("write", EIO);
    offset += n;
    bytes = bytes.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status FileReplacement::Commit() {
  if (const int error = SyncContents(fd_); error != 0) return Error("sync", error);
  // Linux has closed the descriptor even when close() fails, EINTR included.
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return Error("close", errno);
  if (const int error = RenameName(directory_fd_, temporary_.c_str(), directory_fd_, name_.c_str());
      error != 0) {
    return Error("rename a temporary file to", error);
  }
  temporary_.clear();
  if (const int error = SyncNames(directory_fd_); error != 0) {
    return Error("sync the directory of", error);
  }
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, std::string_view contents) {
  absl::StatusOr<std::unique_ptr<FileReplacement>> file = FileReplacement::Create(path);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Append(std::as_bytes(std::span(contents)));
  if (!status.ok()) return status;
  return (*file)->Commit();
}

}  // namespace tessera
