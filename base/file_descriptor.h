#ifndef TESSERA_BASE_FILE_DESCRIPTOR_H_
#define TESSERA_BASE_FILE_DESCRIPTOR_H_

// Access to local files. Every Status names the path, under the codes of ErrnoStatus().

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace tessera {

// An open file, with its path for messages.
class FileDescriptor {
 public:
  // Opens a regular file. Errors: as OpenRegularFile().
  static absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path);
  // Opens a file for Append(). Creates it if it is missing.
  static absl::StatusOr<FileDescriptor> OpenForAppending(const std::string& path);
  // Opens a folder. Does not follow a symbolic link.
  static absl::StatusOr<FileDescriptor> OpenFolder(const std::string& path);

  // Locks the file until this object is destroyed or the process ends. Returns an error if it is
  // locked elsewhere.
  absl::Status TryLock() const;
  // Makes the names in a folder durable.
  absl::Status Sync() const;
  // Makes a file's contents durable.
  absl::Status SyncContents() const;
  // Writes at the end of a file that is open for appending.
  absl::Status Append(std::string_view text) const;
  // Returns whether the path still leads to this file, which may have been deleted, moved or
  // replaced.
  bool IsAtItsPath() const;

  // Fills as much of `out` as the file has from `offset` on. Returns the number of bytes read,
  // which is less than requested only at the end of the file.
  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<uint8_t> out) const;
  struct Facts {
    int64_t size_bytes = 0;
    int64_t modified_ns = 0;  // since 1970
  };
  absl::StatusOr<Facts> Examine() const;
  absl::StatusOr<int64_t> SizeBytes() const;

 private:
  FileDescriptor(ScopedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  static absl::StatusOr<FileDescriptor> Open(const std::string& path, int flags);

  ScopedFd fd_;
  std::string path_;
};

// Reads a whole file. Errors: as OpenForReading(); InvalidArgument if it is longer than max_bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Compares names in natural order, where runs of digits are numbers: shard_2 before shard_10.
bool NaturalLess(std::string_view a, std::string_view b);
// Returns the paths that a shell pattern matches, in natural order; NotFound, naming the pattern,
// if it matches nothing. What it begins with is a path, not a pattern, as far as that path exists:
// "runs/[a]" in "runs/[a]/*.bin".
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern);

}  // namespace tessera

#endif  // TESSERA_BASE_FILE_DESCRIPTOR_H_
