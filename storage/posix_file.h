#ifndef TESSERA_STORAGE_POSIX_FILE_H_
#define TESSERA_STORAGE_POSIX_FILE_H_

// The files of a PosixStorage, over reads and writes of whole ranges of any alignment (DualFile).

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/scoped_fd.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"
#include "storage/transfer_ring.h"
#include "storage/written_ranges.h"

namespace tessera::internal {

// A pool of at most `max_buffers` aligned buffers, for transfers whose own memory is not aligned.
// Further threads wait, so that bouncing never takes more than max_buffers * buffer_bytes.
class BouncePool {
 public:
  BouncePool(size_t buffer_bytes, int max_buffers)
      : buffer_bytes_(buffer_bytes), unallocated_(max_buffers) {}

  // A buffer, which is returned to the pool at destruction.
  class Lease {
   public:
    Lease(BouncePool* pool, AlignedBuffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::move(other.buffer_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    std::span<std::byte> span() { return buffer_.span(); }

   private:
    BouncePool* pool_;
    AlignedBuffer buffer_;
  };

  // Waits for a buffer. ResourceExhausted if there is no memory.
  absl::StatusOr<Lease> Acquire();

 private:
  const size_t buffer_bytes_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<AlignedBuffer> idle_ ABSL_GUARDED_BY(mutex_);
  int unallocated_ ABSL_GUARDED_BY(mutex_);
};

// The system calls, replaceable so that tests can interrupt and shorten them.
struct IoCalls {
  ssize_t (*pread)(int fd, void* data, size_t size, off_t offset) = ::pread;
  ssize_t (*pwrite)(int fd, const void* data, size_t size, off_t offset) = ::pwrite;
  // Changes the result of a transfer through io_uring: the bytes transferred, or a negative errno.
  int (*ring_result)(size_t size, off_t offset, int result) = [](size_t, off_t, int result) {
    return result;
  };
};

struct DualFileOptions {
  // The size below which reads always go through the cache.
  size_t direct_min_bytes = size_t{64} << 10;
  // The alignment of memory that is transferred directly without a copy.
  size_t memory_alignment_bytes = kIoAlignmentBytes;
  // Whether to start transfers through io_uring, if it is available.
  bool io_uring = true;
  IoCalls calls = {};
};

// Returns the alignment of memory that the file system demands for direct transfers;
// kIoAlignmentBytes if it is unknown.
size_t DirectMemoryAlignment(int direct_fd);

// One file, opened once through the page cache and, if the file system allows it, once past it
// (O_DIRECT).
//
// A file is written in one of the two ways. With direct I/O, it is written in whole blocks of
// kIoAlignmentBytes: without a copy if the memory is aligned, too, and through a bounce buffer
// otherwise. A block that a write covers in part is kept in memory until other writes have covered
// the rest. Each of them writes the whole block, with zeros where nothing was written yet, so the
// file ends at a block. The page cache has no page of such a file, since a cached page that is
// written back beside direct writes can make them, and Sync(), fail with EIO. If the file system
// refuses a direct write, this one and all others go through the page cache.
//
// A large read is split at blocks: whole blocks are read directly, and the rest at either end
// through the page cache.
//
// Thread-safe; writes must not overlap with each other, nor reads with writes. Memory: the blocks
// that are written in part.
class DualFile {
 public:
  // `direct` may be invalid.
  DualFile(ScopedFd buffered, ScopedFd direct, const DualFileOptions& options, BouncePool* bounce);

  // Returns whether the offsets of a range, in whole blocks, fit the system's type.
  static bool Fits(uint64_t offset_bytes, uint64_t size_bytes);

  int fd() const { return buffered_.get(); }
  bool direct() const { return direct_usable_.load(std::memory_order_relaxed); }

  // Writes everything or returns an errno.
  int WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) {
    return FinishWrite(nullptr, offset_bytes, data);
  }

  // Reads until `out` is full or the file ends, and sets `*read_bytes`. Returns 0 or an errno.
  int ReadAt(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const {
    return FinishRead(nullptr, offset_bytes, out, read_bytes);
  }

  // Start the direct part of a transfer. Return null if there is no such part, or it cannot be
  // started.
  std::unique_ptr<RingTransfer> StartWrite(uint64_t offset_bytes,
                                           std::span<const std::byte> data) const;
  std::unique_ptr<RingTransfer> StartRead(uint64_t offset_bytes, std::span<std::byte> out) const;

  // Complete WriteAt() and ReadAt() whose direct part was started (null: was not). Do the part that
  // the ring has left undone.
  int FinishWrite(RingTransfer* started, uint64_t offset_bytes, std::span<const std::byte> data);
  int FinishRead(RingTransfer* started, uint64_t offset_bytes, std::span<std::byte> out,
                 size_t* read_bytes) const;

  // Closes both descriptors. Returns the first errno, or 0.
  int Close();

 private:
  // The whole blocks of a range, as offsets from its beginning.
  struct Blocks {
    size_t begin = 0;
    size_t end = 0;
    size_t size() const { return end - begin; }
  };
  static Blocks BlocksOf(uint64_t offset_bytes, size_t size_bytes);
  // Returns whether the blocks of a range are read directly.
  bool ReadsDirectly(size_t size_bytes) const {
    return direct() && size_bytes >= options_.direct_min_bytes;
  }
  bool IsAligned(const std::byte* memory) const {
    return reinterpret_cast<uintptr_t>(memory) % options_.memory_alignment_bytes == 0;
  }
  std::unique_ptr<RingTransfer> Start(bool write, uint64_t offset_bytes,
                                      std::span<const std::byte> memory) const;
  // Waits for a transfer. Returns an errno, or 0 and the bytes that need no other call.
  int Finish(RingTransfer* started, uint64_t offset_bytes, size_t size_bytes,
             size_t* done_bytes) const;
  int WriteBuffered(uint64_t offset_bytes, std::span<const std::byte> data);
  // Sets `*done_bytes` to the bytes that need no other call, whole blocks. After EINVAL, nothing is
  // written directly any more.
  int WriteDirect(uint64_t offset_bytes, std::span<const std::byte> blocks, size_t* done_bytes);
  int WriteBlocks(uint64_t offset_bytes, std::span<const std::byte> blocks);
  int WriteBounced(uint64_t offset_bytes, std::span<const std::byte> blocks);
  // Writes bytes of one block.
  int WritePart(uint64_t offset_bytes, std::span<const std::byte> data);
  int ReadFrom(int fd, uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;
  int ReadDirect(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;
  int ReadBounced(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;

  ScopedFd buffered_;
  ScopedFd direct_;
  const DualFileOptions options_;
  BouncePool* const bounce_;
  // Whether direct transfers work: some file systems accept the flag, but refuse the transfer.
  mutable std::atomic<bool> direct_usable_;

  struct PartialBlock {
    AlignedBuffer bytes;
    size_t written_bytes = 0;
  };
  Mutex partial_mutex_;  // held while such a block is written: the last of its writes has all bytes
  std::map<uint64_t, PartialBlock> partial_ ABSL_GUARDED_BY(partial_mutex_);  // by their offsets
};

class PosixWritableFile final : public WritableFile {
 public:
  // `name` is used in messages; the descriptors are as in DualFile. Reserved space and the rest of
  // the last block behind the last byte written are cut off.
  PosixWritableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                    const DualFileOptions& options, BouncePool* bounce);

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override;
  std::unique_ptr<PendingIo> StartWriteAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                          const ChunkChecksums& checksums) override;
  absl::Status Sync() override;
  absl::Status Close() override;

 private:
  absl::Status Claim(uint64_t offset_bytes, uint64_t size_bytes);
  // Finishes a write; `started` as in DualFile.
  absl::Status FinishWriteAt(RingTransfer* started, uint64_t offset_bytes,
                             std::span<const std::byte> data);
  absl::Status CutToLength() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  // Held shared by writes, exclusively by operations that change the length.
  SharedMutex mutex_;
  DualFile file_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // The kernel reports a failed write-back once; a second fsync() would report success.
  absl::Status sync_status_ ABSL_GUARDED_BY(mutex_);
  Mutex claims_mutex_;
  WrittenRanges claimed_ ABSL_GUARDED_BY(claims_mutex_);
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                    const DualFileOptions& options, BouncePool* bounce, uint64_t size_bytes);

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return FinishReadAt(nullptr, offset_bytes, out);
  }
  std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                         bool original) const override;
  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  bool Holds(uint64_t offset_bytes, size_t size) const {
    return offset_bytes <= size_bytes_ && size <= size_bytes_ - offset_bytes;
  }
  absl::Status FinishReadAt(RingTransfer* started, uint64_t offset_bytes,
                            std::span<std::byte> out) const;

  const std::string name_;
  DualFile file_;
  const uint64_t size_bytes_;
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_POSIX_FILE_H_
