#ifndef TESSERA_STORAGE_POSIX_STORAGE_H_
#define TESSERA_STORAGE_POSIX_STORAGE_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera::internal {
struct IoCalls;  // storage/posix_file.h
}

namespace tessera {

struct PosixStorageOptions {
  // Creates the root directory, with its parents, if it does not exist.
  bool create_root = false;
  // If set, the root must be a directory of that user, not a link; permissions of others are
  // removed. With create_root, it is created in this way. PermissionDenied for another user's
  // directory, FailedPrecondition for a link. For folders with predictable names in places where
  // everybody may write.
  std::optional<uid_t> private_to;

  // Bypasses the page cache (O_DIRECT) if the file system allows it. Large files that are written
  // once and rarely read soon after gain nothing from a cache, which costs a copy and evicts useful
  // pages.
  bool direct_io = true;
  // The size below which reads go through the page cache, and so do all writes to a file that is
  // created with a smaller hint of its size. Other files are written only past the page cache.
  size_t direct_min_bytes = size_t{64} << 10;
  // Whether started transfers are in flight through io_uring, with a ring for each thread that
  // starts some. Without it, or if the kernel or a filter of system calls refuses it, transfers are
  // done by the thread that waits for them. TESSERA_IO_URING=0 in the environment forbids io_uring,
  // too.
  bool io_uring = true;
  // The size of a bounce buffer; there are at most max_bounce_buffers. Data is copied through them
  // unless the caller's memory has the alignment that the file system demands at a multiple of
  // kIoAlignmentBytes in the file. 4 MiB at any offset touch one block more.
  size_t bounce_buffer_bytes = (size_t{4} << 20) + kIoAlignmentBytes;
  int max_bounce_buffers = 8;

  // For tests: the system calls of the files. Must outlive the storage. Null: the system's own.
  const internal::IoCalls* io_calls = nullptr;
};

// Opens a directory of a local or network file system.
//
// The root is opened once: the storage stays with that directory, even if it is renamed. Symbolic
// links are followed in the root and in the directories of a path, and when opening a file to read
// it. They are never followed to delete or to replace something: creating, renaming and deleting
// act on a link itself, and DeleteTree() never leaves its tree.
//
// Errors: those of Storage; NotFound if the root does not exist, InvalidArgument if it is not a
// directory. A write beyond RLIMIT_FSIZE is ResourceExhausted in processes that ignore SIGXFSZ, and
// kills others.
//
// Any number of files may be open for reading. The last ones used take half of the process's
// descriptors (RLIMIT_NOFILE) at most, those of all storages together, and the others are closed
// meanwhile. Reading one of these that has been deleted, renamed or replaced since is Aborted.
absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& root,
                                                          const PosixStorageOptions& options = {});

}  // namespace tessera

#endif  // TESSERA_STORAGE_POSIX_STORAGE_H_
