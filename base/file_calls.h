#ifndef TESSERA_BASE_FILE_CALLS_H_
#define TESSERA_BASE_FILE_CALLS_H_

// The system calls that determine what a power loss leaves behind. Every sync and rename of a file
// that must survive uses these functions, so that a test can record it, drop it or make it fail.
// Each function repeats a call that was interrupted by a signal. Errors have the reason as their
// message, and the codes of ErrnoStatus().

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace tessera {

// Makes a file's contents and length durable, but not its name.
absl::Status SyncContents(int fd);

// Makes the names in a directory durable: creations, renames and deletions. Succeeds on a file
// system that reports that it has no such operation.
absl::Status SyncNames(int directory_fd);

// Renames a file. Replaces a file that has the new name.
absl::Status RenameName(int from_directory_fd, const char* from, int to_directory_fd,
                        const char* to);

// Renames a file or a directory. AlreadyExists if the new name is taken. Atomic with renameat2(),
// or, for a file, with link(); on a file system that has neither, a name that another process takes
// at the same moment may be replaced. A rename that was done although its reply was lost, as
// happens on network file systems, is a success.
absl::Status RenameNameIfFree(int from_directory_fd, const char* from, int to_directory_fd,
                              const char* to);

// Intercepts the system calls of the functions above, which return 0 or an errno. Thread-safe.
class FileCallInterceptor {
 public:
  virtual ~FileCallInterceptor() = default;
  // Called in place of a sync; `call` performs it. Returns the result that the caller sees.
  virtual int Sync(int fd, absl::FunctionRef<int()> call) = 0;
  virtual int Rename(absl::FunctionRef<int()> call) = 0;
};

// Installs an interceptor, for tests; null (the default) removes it. Must not be called while calls
// are in progress.
void SetFileCallInterceptor(FileCallInterceptor* interceptor);

}  // namespace tessera

#endif  // TESSERA_BASE_FILE_CALLS_H_
