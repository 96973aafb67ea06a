#ifndef TESSERA_STORAGE_STORAGE_H_
#define TESSERA_STORAGE_STORAGE_H_

// The interface to a place that keeps checkpoints: files written at any offset, files read at any
// offset, and names that become durable when their directory is synced.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// A transfer whose buffer address, file offset and length are all multiples of this many bytes can
// go between the disk and the caller's buffer without a copy.
inline constexpr size_t kIoAlignmentBytes = 4096;

// A read or a write that was started, and that the caller's memory must outlive. The destructor
// waits for its end, too, so that the memory is the caller's again however it goes on.
class PendingIo {
 public:
  virtual ~PendingIo() = default;

  // Waits for the end and returns what the call that does not return before would have returned. To
  // be called at most once, before the file is closed or destroyed, by the thread that started it.
  virtual absl::Status Wait() = 0;
};

// What is known of data that is written: the CRC-32C of each `chunk_bytes` of it, from its
// beginning on; the last chunk may be shorter. Empty: nothing.
struct ChunkChecksums {
  uint64_t chunk_bytes = 0;
  std::span<const uint32_t> crc32c = {};

  // What is known of the data without its first bytes.
  ChunkChecksums From(uint64_t offset_bytes) const;
  // The CRC-32C of whole chunks; nullopt where the range is of other parts, or nothing is known.
  std::optional<uint32_t> OfRange(uint64_t offset_bytes, uint64_t size_bytes) const;
};

// A file being written. Writes may come from several threads, at any offset, in any order, but each
// byte is written once: a write that overlaps with another one, even one that has failed, is
// refused. Parts never written read as zeros, and the file ends where the last byte was written.
// Nothing is durable before Sync() has returned OK. Close() must be called and does not imply
// Sync(); the destructor releases resources and reports nothing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  // Writes all of `data`, or returns an error, after which the range's contents are unspecified.
  // Errors: ResourceExhausted when the disk is full, FailedPrecondition after Close(), and
  // with nothing changed where some of the bytes belong to another write.
  virtual absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) = 0;

  // WriteAt() of data with known checksums. A storage that sends checksums with the data, which
  // whoever keeps it compares, sends these: they protect it from where they were computed on.
  virtual absl::Status WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                      const ChunkChecksums& /*checksums*/) {
    return WriteAt(offset_bytes, data);
  }

  // Starts WriteCheckedAt() and goes on where the storage can: one thread then keeps several writes
  // in flight. Wait() does the rest, by default everything. Neither `data` nor `checksums`, which
  // may be empty, may change before.
  virtual std::unique_ptr<PendingIo> StartWriteAt(uint64_t offset_bytes,
                                                  std::span<const std::byte> data,
                                                  const ChunkChecksums& checksums);

  // Makes contents and length durable, but not the name: see Storage::SyncDirectory(). Covers the
  // writes that returned before the call. An error is final: the file must be written again.
  virtual absl::Status Sync() = 0;

  // Must not overlap with another call, and must be the last one.
  virtual absl::Status Close() = 0;
};

// A file being read. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  // Fills all of `out`, or fails: DataLoss, naming file and offset, when the file is too short
  // (with expected and found size) and when the disk cannot return its contents. Large reads bypass
  // the cache; callers provide the parallelism.
  virtual absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const = 0;

  // ReadAt(), but never from a copy that the storage keeps to be faster: whether a file is damaged
  // is decided by these bytes.
  virtual absl::Status ReadOriginalAt(uint64_t offset_bytes, std::span<std::byte> out) const {
    return ReadAt(offset_bytes, out);
  }

  // Starts ReadAt(), or, if `original`, ReadOriginalAt(), and goes on where the storage can: one
  // thread then keeps several reads in flight. Wait() does the rest, by default everything.
  virtual std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                                 bool original) const;

  // Where in a page of memory a large read at this offset begins if it is to need no copy.
  virtual size_t OffsetInPage(uint64_t offset_bytes) const {
    return offset_bytes % kIoAlignmentBytes;
  }

  // The size at the time of Open().
  virtual uint64_t size_bytes() const = 0;
};

// A file-system-like place to keep checkpoints.
//
// Paths are relative to the storage's root and use '/'. "" is the root itself, for the operations
// on directories. InvalidArgument for an absolute path, an empty, "." or ".." component, a trailing
// '/' and a NUL.
//
// Errors: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (no space), InvalidArgument
// (bad path, or a directory where a file is needed), DataLoss (a file that cannot be read),
// Unavailable for other errors; each message names path and operation.
//
// Nothing is ever deleted or replaced through a symbolic link, whether by Delete(), DeleteTree(),
// Create() or Rename(): FailedPrecondition or AlreadyExists where a directory on the path is a
// link. All other operations follow links.
//
// Thread-safe. A storage must outlive its files. A file that is being read must not be written.
class Storage {
 public:
  virtual ~Storage() = default;

  // Creates an empty file, replacing an existing one (readers that have the old file open, and
  // other hard links to it, keep the old contents). The directory must exist. `size_hint_bytes` (0:
  // unknown) lets the file system reserve space up front, so that a full disk is reported here and
  // not halfway through. It does not determine the length, but an exact hint is the fastest.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                               uint64_t size_hint_bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) = 0;

  // Atomically gives the file or directory `from` the name `to`. Nothing is ever replaced:
  // AlreadyExists. Unimplemented where a storage has no such operation, as object stores do not.
  virtual absl::Status Rename(std::string_view from, std::string_view to) = 0;

  // Creates a small file with these contents, atomically and durably, its name included.
  // AlreadyExists where the name is taken: that file is unchanged, and nothing is left of this one.
  //
  // `ready` (may be null) is called when all that is missing is the name; its error is returned,
  // with nothing created. It is called again before a request is repeated whose first sending may
  // still arrive, at any time; its error is returned then, too. Where the storage has directories,
  // the file is by then a temporary one inside the directory: if the directory is renamed or
  // deleted after `ready` has looked at it, the call fails.
  virtual absl::Status Publish(std::string_view path, std::string_view contents,
                               const std::function<absl::Status()>& ready);

  // Whether Rename() renames directories too, so that one which is to be deleted can be taken out
  // of other writers' reach first. Where it does not, as in object stores, Exchange() fences them.
  virtual bool RenamesDirectories() const { return true; }

  // Replaces a small file whose contents are `expected`, atomically and durably. Aborted, with
  // nothing changed, where it has other contents or is gone. `ready` as in Publish(). Unimplemented
  // in storages that rename directories, which need no such operation.
  virtual absl::Status Exchange(std::string_view path, std::string_view expected,
                                std::string_view contents,
                                const std::function<absl::Status()>& ready);

  // Creates the directory and its parents; OK if they exist. All of them are durable on return,
  // including existing ones.
  virtual absl::Status MakeDirectory(std::string_view path) = 0;

  // Makes creations, renames and deletions directly inside the directory durable.
  virtual absl::Status SyncDirectory(std::string_view path) = 0;

  // Names (not paths) inside a directory, sorted; those of directories end in '/'. NotFound if the
  // directory does not exist.
  virtual absl::StatusOr<std::vector<std::string>> List(std::string_view path) = 0;

  // Deletes one file, or an empty directory: AlreadyExists where it is not empty. A symbolic
  // link itself is deleted, not its target.
  virtual absl::Status Delete(std::string_view path) = 0;

  // Deletes files of one directory; none of them need be there. Returns the first error, having
  // tried all.
  virtual absl::Status DeleteFiles(std::string_view directory,
                                   const std::vector<std::string>& names);

  // Deletes a directory with its contents, or a file. Never follows symbolic links. NotFound if
  // nothing exists under the name; InvalidArgument for the root.
  virtual absl::Status DeleteTree(std::string_view path) = 0;

  // Whether the last component of the path is a symbolic link. False in storages without links.
  virtual bool IsLink(std::string_view path);

  // Free space, for a check before a save; another process may use it meanwhile. Unimplemented
  // where a storage has no such limit.
  virtual absl::StatusOr<uint64_t> FreeBytes();

  // A small file that is replaced as a whole, by whichever of several programs is the first to do
  // it. Unimplemented where a storage cannot.
  struct Version {
    std::string contents;
    std::string tag;  // unlike that of any other version under this name
  };
  // Returns the first `max_bytes` of longer contents.
  virtual absl::StatusOr<Version> ReadVersion(std::string_view path, uint64_t max_bytes);
  // Replaces the version with this tag; creates the file where the tag is empty. Returns the new
  // tag. AlreadyExists where another version is there. NotFound where none is. The contents must be
  // unlike all others, which is how a request whose answer was lost is recognised.
  virtual absl::StatusOr<std::string> ReplaceVersion(std::string_view path,
                                                     std::string_view contents,
                                                     const std::string& tag);

  // For a process that is about to end: from now on nothing is tried again, and nobody waits for
  // another machine that does not answer. What makes progress is completed.
  virtual void Abandon() {}

  // The size of write, at multiples of itself, that costs the least; 0: all sizes cost the same.
  virtual uint64_t PreferredWriteBytes() const { return 0; }

  // For memory that a program waits to overwrite: with an address at a multiple of this (a power of
  // two, at most kIoAlignmentBytes), and with offset and length as for direct I/O, WriteAt() copies
  // nothing and takes as long as a disk of this machine. 0: it copies, or may wait for others.
  virtual uint64_t InPlaceAlignmentBytes() { return 0; }

  // The same place in the file system of this machine, for what this interface does not offer:
  // locks and checks of permissions. Nullopt in storages outside the file system.
  virtual std::optional<std::string> LocalPath(std::string_view path) const;

  // Whether the storage presents files of another format as one checkpoint. Its manifest is then
  // made in memory by this process, and its data files have no checksums.
  virtual bool PresentsForeignFiles() const { return false; }

  // For messages: "/runs/a" or "memory:a".
  virtual std::string Describe(std::string_view path) const = 0;
};

// Convenience functions over the interface, for small files such as a manifest.

// ResourceExhausted for a file above `max_bytes`, before anything is allocated.
absl::StatusOr<std::string> ReadAll(Storage& storage, std::string_view path, uint64_t max_bytes);

// The contents are synced, the name is not; see Storage::SyncDirectory().
absl::Status WriteAll(Storage& storage, std::string_view path, std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_STORAGE_STORAGE_H_
