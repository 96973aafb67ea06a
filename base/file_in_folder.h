#ifndef TESSERA_BASE_FILE_IN_FOLDER_H_
#define TESSERA_BASE_FILE_IN_FOLDER_H_

// A file that is read again and again, and found again when its folder has been renamed.

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace tessera {

// Not thread-safe.
class FileInFolder {
 public:
  // Remembers an absolute path. Nothing is opened.
  explicit FileInFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }

  // Opens the file for reading, in its folder, which stays open. Once the folder is deleted, the
  // path alone says where the file is. Errors: as of OpenRegularFile().
  absl::StatusOr<ScopedFd> Open();

  // Returns what the folder is called, if its path leads to another one; otherwise "".
  std::string MovedTo() const;

 private:
  const std::filesystem::path path_;
  ScopedFd folder_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_FILE_IN_FOLDER_H_
