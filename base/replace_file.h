#ifndef TESSERA_BASE_REPLACE_FILE_H_
#define TESSERA_BASE_REPLACE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace tessera {

// Replaces a file atomically: it appears under its name complete and durable, or not at all.
//
//   file = FileReplacement::Create(path);
//   file->Append(...); file->WriteAt(...);
//   file->Commit();
//
// Until Commit(), an existing file of that name keeps its contents; readers that have it open see
// them afterwards, too. The new contents are written under a temporary name in the same directory,
// which no other process or object uses; the directory must exist, be readable and not be moved. A
// symbolic link itself is replaced. After a crash or a power loss the name has the old or the new
// contents, and once Commit() has returned OK the new ones; the temporary file may remain.
//
// Errors: the codes of ErrnoStatus(); each message names the path. Not thread-safe.
class FileReplacement {
 public:
  static absl::StatusOr<std::unique_ptr<FileReplacement>> Create(const std::string& path);
  // Removes the temporary file unless it was renamed.
  ~FileReplacement();
  FileReplacement(const FileReplacement&) = delete;
  FileReplacement& operator=(const FileReplacement&) = delete;

  // Writes after everything that was appended before.
  absl::Status Append(std::span<const std::byte> bytes);
  // Does not change the position of the next Append().
  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes);

  // Call once, last. Syncs the contents, renames, and syncs the directory. If only the last step
  // fails, the new contents are in place, but a power loss may still undo the replacement.
  absl::Status Commit();

 private:
  FileReplacement(std::string path, std::string name, ScopedFd directory);
  absl::Status OpenTemporary();
  absl::Status Error(std::string_view action, const absl::Status& reason) const;

  const std::string path_, name_;  // path, and name within the directory
  const ScopedFd directory_;
  std::string temporary_;  // empty: none
  ScopedFd fd_;
  int64_t size_bytes_ = 0;
};

// Replaces a file's contents in one call.
absl::Status ReplaceFile(const std::string& path, std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_BASE_REPLACE_FILE_H_
