#ifndef TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct PosixStorageOptions {
  // Create the root directory, with its parents, where it is missing.
  bool create_root = false;

  // Past the page cache (O_DIRECT) where the file system allows it. Checkpoints are written once
  // and rarely read back soon: caching them costs a copy and evicts what is needed.
  bool direct_io = true;
  // Smaller transfers go through the page cache.
  size_t direct_min_bytes = size_t{64} << 10;
  // Transfers whose memory is not aligned to kIoAlignmentBytes as their place in the file is are
  // copied through buffers of this size, of which there are never more than the second number.
  size_t bounce_buffer_bytes = size_t{4} << 20;
  int max_bounce_buffers = 8;
};

// A directory of a local or network file system.
//
// The root is opened once: the storage stays with that directory, even if it is renamed. Symbolic
// links are followed in the root and in the directories of a path, and when opening a file to read
// it, but never to delete or to replace something; creating, renaming and deleting act on a link
// itself, and DeleteTree() never leaves its tree.
//
// Errors: those of Storage; NotFound if there is no root, InvalidArgument if it is no directory.
// A write beyond RLIMIT_FSIZE is ResourceExhausted in processes that ignore SIGXFSZ, and kills
// others.
absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& root,
                                                          const PosixStorageOptions& options = {});

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_POSIX_STORAGE_H_
