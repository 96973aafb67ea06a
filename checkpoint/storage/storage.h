#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::ckpt {

// A file being written. Writes may come from several threads, at any offset, in any order; parts never written
// read as zeros. Nothing is durable before Sync() returned OK. Close() must be called; the destructor
// releases resources and reports nothing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) = 0;
  // Makes contents and length durable.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// A file being read; safe for use from several threads.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Fills all of `out`, or fails: DataLoss when the file ends before, naming file, offset, expected and found.
  virtual absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const = 0;
  virtual uint64_t size_bytes() const = 0;
};

// A file-system-like place to keep checkpoints. Paths are relative to the storage's root, use '/', and never
// contain "..". Thread-safe. Errors: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (no
// space), InvalidArgument (bad path), Unavailable for the rest; each names path and operation.
class Storage {
 public:
  virtual ~Storage() = default;

  // Creates or truncates. `size_hint_bytes` (0: unknown) lets the file system reserve room up front, so that a full disk is
  // reported here and not halfway.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                               uint64_t size_hint_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) = 0;
  // Atomically replaces `to` by `from`. A directory target must not exist.
  virtual absl::Status Rename(std::string_view from, std::string_view to) = 0;
  // Creates the directory and its parents; OK if there.
  virtual absl::Status MakeDirectory(std::string_view path) = 0;
  // Makes creations, renames and deletions directly inside the directory durable.
  virtual absl::Status SyncDirectory(std::string_view path) = 0;
  // Names (not paths) inside a directory, sorted; directories end in '/'. NotFound if there is none.
  virtual absl::StatusOr<std::vector<std::string>> List(std::string_view path) = 0;
  virtual absl::Status Delete(std::string_view path) = 0;
  virtual absl::Status DeleteTree(std::string_view path) = 0;
  // For messages: "/runs/a" or "memory:".
  virtual std::string Describe(std::string_view path) const = 0;
};

// Convenience over the interface, for small files such as a manifest. ReadAll refuses files above `max_bytes`.
absl::StatusOr<std::string> ReadAll(Storage& storage, std::string_view path, uint64_t max_bytes);
absl::Status WriteAll(Storage& storage, std::string_view path, std::string_view contents);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_H_
