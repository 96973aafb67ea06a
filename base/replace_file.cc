#include "base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera {
namespace {

// Leaves room for the suffix of the temporary name: names have at most 255 bytes.
constexpr size_t kMaxKeptNameBytes = 200;

// Adds 64 random bits, because processes on other machines may write to the same directory.
std::string TemporaryName(const std::string& name) {
  return absl::StrCat(name.substr(0, kMaxKeptNameBytes), ".tmp-", RandomHex(16));
}

}  // namespace

FileReplacement::FileReplacement(std::string path, std::string name, ScopedFd directory)
    : path_(std::move(path)), name_(std::move(name)), directory_(std::move(directory)) {}

absl::StatusOr<std::unique_ptr<FileReplacement>> FileReplacement::Create(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name.empty() || name == "." || name == "..") {
    return Named("cannot create", path, ErrnoStatus(EISDIR));
  }
  // Opened before anything is written: a directory that cannot be synced later is an error here.
  ScopedFd opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid()) return Named("cannot open the directory of", path, ErrnoStatus(errno));
  std::unique_ptr<FileReplacement> file(
      new FileReplacement(path, std::move(name), std::move(opened)));
  TESSERA_RETURN_IF_ERROR(file->OpenTemporary());
  return file;
}

absl::Status FileReplacement::OpenTemporary() {
  // mkstemp would create private files, but these must have the permissions of the umask.
  constexpr int kAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    std::string temporary = TemporaryName(name_);
    absl::StatusOr<ScopedFd> fd =
        OpenRegularFile(directory_.get(), temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (fd.ok()) {
      fd_ = *std::move(fd);
      temporary_ = std::move(temporary);
      return absl::OkStatus();
    }
    if (!absl::IsAlreadyExists(fd.status()) || attempt == kAttempts) {
      return Error("create a temporary file for", fd.status());
    }
  }
}

FileReplacement::~FileReplacement() {
  if (!temporary_.empty()) unlinkat(directory_.get(), temporary_.c_str(), 0);
}

absl::Status FileReplacement::Error(std::string_view action, const absl::Status& reason) const {
  return Named(absl::StrCat("cannot ", View(action)), path_, reason);
}

absl::Status FileReplacement::Append(std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(WriteAt(size_bytes_, bytes));
  size_bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status FileReplacement::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error("write", ErrnoStatus(errno));
    if (n == 0) return Error("write", ErrnoStatus(EIO));
    offset += n;
    bytes = bytes.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status FileReplacement::Commit() {
  TESSERA_RETURN_IF_ERROR(Error("sync", SyncContents(fd_.get())));
  TESSERA_RETURN_IF_ERROR(Error("close", ErrnoStatus(fd_.Close())));
  TESSERA_RETURN_IF_ERROR(
      Error("rename a temporary file to",
            RenameName(directory_.get(), temporary_.c_str(), directory_.get(), name_.c_str())));
  temporary_.clear();
  return Error("sync the directory of", SyncNames(directory_.get()));
}

absl::Status ReplaceFile(const std::string& path, std::string_view contents) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<FileReplacement> file,
                           FileReplacement::Create(path));
  TESSERA_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(contents))));
  return file->Commit();
}

}  // namespace tessera
