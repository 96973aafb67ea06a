#ifndef TESSERA_STORAGE_STORAGE_H_
#define TESSERA_STORAGE_STORAGE_H_

// A Storage is a tree of files behind one interface: a folder of this machine, a prefix of a bucket
// in an object store, or a combination of both. Large files are written and read at any offset, by
// several threads. Small files are written as a whole under a condition, which is how programs that
// share a storage agree on something.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
//                            OpenStorage("s3://bucket/prefix", {.create_root = true}));
//   TESSERA_RETURN_IF_ERROR(storage->MakeDirectory("a"));
//   TESSERA_RETURN_IF_ERROR(WriteAll(*storage, "a/data", bytes));  // may be interrupted halfway
//   TESSERA_RETURN_IF_ERROR(storage->SyncDirectory("a"));
//   absl::StatusOr<std::string> version = storage->Write("a/done", "yes", {});  // all or nothing
//
// OpenStorage() is in open_storage.h, and a program that uses this library in example/.

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

class StatedChecksums;  // storage/stated_checksums.h

// A transfer needs no copy between the disk and the caller's buffer if the buffer's address, the
// file offset and the length are multiples of this many bytes.
inline constexpr size_t kIoAlignmentBytes = 4096;

// A read or a write in progress, and a promise by the caller: its memory stays in place until
// Wait() has returned or the object is destroyed. The destructor waits, too, and drops the result.
class PendingIo {
 public:
  virtual ~PendingIo() = default;

  // Waits for the end of the transfer and returns its status. Call at most once, on the thread that
  // started the transfer, before the file is closed or destroyed.
  virtual absl::Status Wait() = 0;
};

// Checksums that the writer of some data has computed already: the CRC-32C of each chunk of
// `chunk_bytes` from the beginning of the data. The last chunk may be shorter. Default: none.
struct ChunkChecksums {
  uint64_t chunk_bytes = 0;
  std::span<const uint32_t> crc32c = {};

  // Returns the checksums of the data from `offset_bytes` on. None if a chunk does not begin there.
  ChunkChecksums From(uint64_t offset_bytes) const;
  // Returns the CRC-32C of a range that consists of whole chunks; nullopt for other ranges.
  std::optional<uint32_t> OfRange(uint64_t offset_bytes, uint64_t size_bytes) const;
};

// A file that is being written. Threads may write at any offset and in any order, but each byte is
// written once: a write that overlaps with an earlier one, even a failed one, is refused. Bytes
// that were never written read as zeros, and the file ends after the last byte that was written.
//
// Nothing is durable before Sync() returns OK. Call Close() at the end; it does not imply Sync().
// The destructor releases resources and reports nothing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  // Writes all of `data`. After an error, the contents of the range are unspecified. Errors:
  // ResourceExhausted if the disk is full; FailedPrecondition, with nothing changed, after Close()
  // or if some of the bytes belong to an earlier write.
  virtual absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) = 0;

  // Writes as WriteAt() does, for data whose checksums are known. A storage whose server compares
  // checksums sends these, which protects the data from the moment they were computed.
  virtual absl::Status WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                      const ChunkChecksums& /*checksums*/) {
    return WriteAt(offset_bytes, data);
  }

  // Starts WriteCheckedAt() and returns before it ends if the storage can, so that one thread keeps
  // several writes in flight. By default, Wait() does all the work. `data` and `checksums` must not
  // change until then.
  virtual std::unique_ptr<PendingIo> StartWriteAt(uint64_t offset_bytes,
                                                  std::span<const std::byte> data,
                                                  const ChunkChecksums& checksums);

  // Makes contents and length durable, but not the name: see Storage::SyncDirectory(). Covers
  // writes that returned before the call. After an error, the file must be written again.
  virtual absl::Status Sync() = 0;

  // Call last, and while no other call is in progress.
  virtual absl::Status Close() = 0;
};

// A file that is being read. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;

  // Fills all of `out`. Large reads bypass the cache; callers provide the parallelism. Errors name
  // file and offset: DataLoss if the file is too short or the disk cannot return its contents,
  // Aborted if it was deleted or replaced while the storage had closed it.
  virtual absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const = 0;

  // Reads as ReadAt() does, but never from a copy that the storage keeps to be faster. Use it to
  // decide whether the file itself is damaged.
  virtual absl::Status ReadOriginalAt(uint64_t offset_bytes, std::span<std::byte> out) const {
    return ReadAt(offset_bytes, out);
  }

  // Starts ReadAt(), or ReadOriginalAt() if `original`, and returns before it ends if the storage
  // can, so that one thread keeps several reads in flight. By default, Wait() does all the work.
  virtual std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                                 bool original) const;

  // Returns the offset in a page of memory at which a large read from `offset_bytes` needs no copy.
  virtual size_t OffsetInPage(uint64_t offset_bytes) const {
    return offset_bytes % kIoAlignmentBytes;
  }

  // Returns where the code that parses the file reports the checksums that the file states of its
  // parts. Null: nothing compares them.
  virtual StatedChecksums* stated_checksums() const { return nullptr; }

  // Returns the size at the time of Open().
  virtual uint64_t size_bytes() const = 0;
};

// The differences between storages. Constant while a storage is open.
struct StorageTraits {
  // Whether Rename() moves directories. A program can then take a directory out of the reach of
  // others before it deletes it.
  bool renames_directories = true;

  // Whether Write() replaces a file under the condition that it has a given version. A store may
  // still turn out to ignore conditions, which Write() detects. If Write() works by Replace(), the
  // version of a file is a function of its contents.
  bool replaces_versions = false;

  // Whether this process makes the files from files of another format. Their names mean nothing to
  // others, and no other process has ever computed a checksum of them.
  bool is_translation = false;

  // The size of writes, at multiples of it, that cost the least. 0: all sizes cost the same.
  uint64_t preferred_write_bytes = 0;

  // The alignment of writes in place (a power of two, at most kIoAlignmentBytes), which matters for
  // memory that a program waits to overwrite. A write whose address has this alignment, and whose
  // offset and length are multiples of kIoAlignmentBytes, copies nothing and takes as long as a
  // disk of this machine. 0: a write copies its data, or may wait for other machines.
  uint64_t in_place_alignment_bytes = 0;
};

// The contents of a small file, and a token that differs for each version of the file. Without
// StorageTraits::replaces_versions, the token means nothing and may be empty.
struct VersionedContents {
  std::string contents;
  std::string version;
};

// The condition of Storage::Write().
struct WriteCondition {
  // The version that the file must have. Empty: the file must not exist.
  std::string version = {};

  // Called when nothing but the file's name is missing. If it returns an error, so does Write(),
  // with nothing changed. Called again before a request is repeated, because its first sending may
  // still arrive later; an error is returned then, too. Null: not called.
  //
  // In storages with directories, a temporary file lies in the directory by then: if the directory
  // is renamed or deleted after the call, Write() fails.
  std::function<absl::Status()> ready = nullptr;
};

// A tree of files.
//
// Paths are relative to the root and use '/'. "" is the root itself, for operations on directories.
// InvalidArgument for an absolute path, an empty, "." or ".." component, a trailing '/' and a NUL.
//
// Errors: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (no space), InvalidArgument
// (bad path, or a directory instead of a file), DataLoss (a file that cannot be read), Unavailable
// for others. Each message names the path and the operation.
//
// Nothing is ever deleted or replaced through a symbolic link, whether by Delete(), DeleteTree(),
// Create(), Rename() or Replace(): FailedPrecondition or AlreadyExists if a directory on the path
// is a link. All other operations follow links.
//
// Thread-safe. A storage must outlive its files. Do not write to a file that is being read.
class Storage {
 public:
  virtual ~Storage() = default;

  virtual StorageTraits Traits() { return {}; }

  // Large files.

  // Creates an empty file in an existing directory and replaces a file of that name. Readers that
  // have the old file open, and its other hard links, keep the old contents. Reading fails where
  // the storage has closed that file meanwhile, as folders do with more files than descriptors.
  //
  // `size_hint_bytes` (0: unknown) lets a file system reserve space, so that a full disk is
  // reported here and not halfway through. The hint does not determine the length of the file; an
  // exact one is the fastest.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                               uint64_t size_hint_bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) = 0;

  // Small files.

  // Writes a file as a whole, atomically and durably, its name included, if the condition holds.
  // Returns the new version. Give the versions of a file different contents, which identify a
  // request whose answer was lost.
  //
  // Errors, with nothing changed: AlreadyExists if the file must not exist but does; Aborted if it
  // has another version or is gone; Unimplemented if the storage cannot replace versions. In
  // storages with directories, of several writers that replace one version at the same moment, one
  // that gets Aborted may have been seen before the one that succeeds.
  virtual absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                            const WriteCondition& condition);

  // Reads a file as a whole. ResourceExhausted, before anything is allocated, if it is longer than
  // `max_bytes`.
  virtual absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes);

  // Names.

  // Gives the file or directory `from` the name `to`, atomically. AlreadyExists if the name is
  // taken: nothing is ever replaced. Unimplemented for directories unless
  // StorageTraits::renames_directories.
  virtual absl::Status Rename(std::string_view from, std::string_view to) = 0;

  // Gives the file `from` the name `to`, atomically, and replaces a file that has it, for readers
  // as in Create(). For Write(), which has conditions. Unimplemented by default.
  virtual absl::Status Replace(std::string_view from, std::string_view to);

  // Creates the directory and its parents; OK if they exist. All of them are durable on return,
  // including existing ones.
  virtual absl::Status MakeDirectory(std::string_view path) = 0;

  // Makes creations, renames and deletions directly inside the directory durable.
  virtual absl::Status SyncDirectory(std::string_view path) = 0;

  // Returns the names (not paths) inside a directory, sorted; names of directories end in '/'.
  // NotFound if the directory does not exist.
  virtual absl::StatusOr<std::vector<std::string>> List(std::string_view path) = 0;

  // Deletes one file or an empty directory; AlreadyExists if the directory is not empty. Deletes a
  // symbolic link itself, not its target.
  virtual absl::Status Delete(std::string_view path) = 0;

  // Deletes a file that has this version, which Read() or Write() has returned. OK if it has
  // another version, which stays, or is gone. For storages whose server compares and deletes in one
  // step. By default, and in a store that ignores the condition, a version that appears between the
  // comparison and the deletion is deleted, too.
  virtual absl::Status DeleteVersion(std::string_view path, std::string_view version);

  // Deletes files of one directory and skips those that do not exist. Tries all and returns the
  // first error.
  virtual absl::Status DeleteFiles(std::string_view directory,
                                   const std::vector<std::string>& names);

  // Deletes a directory with its contents, or a file. Never follows symbolic links. NotFound if
  // nothing exists under the name; InvalidArgument for the root.
  virtual absl::Status DeleteTree(std::string_view path) = 0;

  // Returns whether the last component of the path is a symbolic link. False in storages without
  // links.
  virtual bool IsLink(std::string_view path);

  // Places.

  // Returns the free space. Other programs may use it at any time. Unimplemented in storages
  // without a limit.
  virtual absl::StatusOr<uint64_t> FreeBytes();

  // Returns the path in the file system of this machine, for what this interface does not offer,
  // such as locks. Nullopt in storages outside of the file system.
  virtual std::optional<std::string> LocalPath(std::string_view path) const;

  // Returns the storage in which this one keeps copies of its files that are faster to read. Null:
  // none. Copies may vanish at any time.
  virtual Storage* staging() { return nullptr; }

  // Returns the path as messages name it: "/data/a" or "s3://bucket/a".
  virtual std::string Describe(std::string_view path) const = 0;

  // Ends retries and waits for machines that do not answer. Call when the process is about to end.
  // Operations that make progress are completed.
  virtual void Abandon() {}

 private:
  absl::Status CheckVersion(std::string_view path, std::string_view version);
  absl::Status KeepOthersOut(std::string_view path, std::string_view version);
};

// Reads a small file. ResourceExhausted, before anything is allocated, if it is longer than
// `max_bytes`.
absl::StatusOr<std::string> ReadAll(Storage& storage, std::string_view path, uint64_t max_bytes);

// Creates or replaces a file with these contents and syncs them, but not the name: see
// Storage::SyncDirectory(). Not atomic, unlike Storage::Write().
absl::Status WriteAll(Storage& storage, std::string_view path, std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_STORAGE_STORAGE_H_
