#ifndef TESSERA_STORAGE_POSIX_IO_H_
#define TESSERA_STORAGE_POSIX_IO_H_

// Reading and writing whole ranges of any alignment, over two descriptors of one file.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"
#include "storage/transfer_ring.h"

namespace tessera::internal {

// "WriteAt /runs/a: No space left on device" under the code that storage.h promises for `error`.
absl::Status ErrnoStatus(int error, std::string_view operation, std::string_view where);

// The same for reading, where bytes that are known to be lost are DataLoss; EIO, which may pass, is
// Unavailable.
absl::Status ReadErrnoStatus(int error, std::string_view operation, std::string_view where);

// Owns a file descriptor.
class ScopedFd {
 public:
  ScopedFd() = default;
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(ScopedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScopedFd& operator=(ScopedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ScopedFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  // Returns 0 or an errno. The descriptor is closed either way.
  int Close();

 private:
  int fd_ = -1;
};

// Aligned buffers for transfers whose own memory is not aligned, at most `max_buffers` of them:
// further threads wait, so that bouncing never takes more than max_buffers * buffer_bytes.
class BouncePool {
 public:
  BouncePool(size_t buffer_bytes, int max_buffers)
      : buffer_bytes_(buffer_bytes), unallocated_(max_buffers) {}

  // Returns the buffer to the pool when destroyed.
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

  // ResourceExhausted when out of memory.
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
  // What a transfer through io_uring ended with: the bytes transferred, or a negative errno.
  int (*ring_result)(size_t size, off_t offset, int result) = [](size_t, off_t, int result) {
    return result;
  };
};

// Applies to files that are opened afterwards; for tests.
void SetIoCalls(const IoCalls& calls);
const IoCalls& CurrentIoCalls();

struct DualFileOptions {
  // Smaller reads always go through the cache.
  size_t direct_min_bytes = size_t{64} << 10;
  // Memory at multiples of this is transferred directly without a copy.
  size_t memory_alignment_bytes = kIoAlignmentBytes;
  // Starts transfers through io_uring, where there is one.
  bool io_uring = true;
};

// What the file system asks for of the memory of direct transfers; kIoAlignmentBytes where it does
// not say.
size_t DirectMemoryAlignment(int direct_fd);

// One file, opened once through the page cache and, where the file system allows it, once past it
// (O_DIRECT).
//
// It is written in one of the two ways. A file that was opened for direct I/O is written in whole
// blocks of kIoAlignmentBytes and directly: without a copy where the memory is aligned too, and
// through a bounce buffer where it is not. A block that a write covers in part is kept in memory
// until other writes have covered the rest, and is written by each of them as a whole, with zeros
// where nothing was written yet; so the file ends at a block. The page cache has none of such a
// file: a cached page that is written back beside direct writes can end them, and Sync(), with EIO.
// If the file system refuses a direct write, this one and all others go through the page cache.
//
// A large read is split at blocks: those are read directly, and less than a block at either end
// through the page cache.
//
// Thread-safe; writes must not overlap with each other, nor reads with writes. Memory: that of
// blocks that are written in part.
class DualFile {
 public:
  // `direct` may be invalid.
  DualFile(ScopedFd buffered, ScopedFd direct, const DualFileOptions& options, BouncePool* bounce,
           IoCalls calls = CurrentIoCalls());

  // Whether a range, in whole blocks, has offsets that the system knows.
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

  // Start the direct part of such a transfer. Null where it has none, or cannot be started.
  std::unique_ptr<RingTransfer> StartWrite(uint64_t offset_bytes,
                                           std::span<const std::byte> data) const;
  std::unique_ptr<RingTransfer> StartRead(uint64_t offset_bytes, std::span<std::byte> out) const;

  // WriteAt() and ReadAt(), of which the direct part was started (null: was not). Whatever the ring
  // left undone is done as they do it.
  int FinishWrite(RingTransfer* started, uint64_t offset_bytes, std::span<const std::byte> data);
  int FinishRead(RingTransfer* started, uint64_t offset_bytes, std::span<std::byte> out,
                 size_t* read_bytes) const;

  // Closes both. Returns the first errno, or 0.
  int Close();

 private:
  // The whole blocks of a range, as offsets from its begin.
  struct Blocks {
    size_t begin = 0;
    size_t end = 0;
    size_t size() const { return end - begin; }
  };
  static Blocks BlocksOf(uint64_t offset_bytes, size_t size_bytes);
  // Whether the blocks of a range are read directly.
  bool ReadsDirectly(size_t size_bytes) const {
    return direct() && size_bytes >= options_.direct_min_bytes;
  }
  bool IsAligned(const std::byte* memory) const {
    return reinterpret_cast<uintptr_t>(memory) % options_.memory_alignment_bytes == 0;
  }
  std::unique_ptr<RingTransfer> Start(bool write, uint64_t offset_bytes,
                                      std::span<const std::byte> memory) const;
  // Waits. Returns an errno, or 0 and the bytes that need no other call.
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
  const IoCalls calls_;
  // Some file systems accept the flag, but refuse the transfer.
  mutable std::atomic<bool> direct_usable_;

  struct PartialBlock {
    AlignedBuffer bytes;
    size_t written_bytes = 0;
  };
  Mutex partial_mutex_;  // held while such a block is written: the last of its writes has all bytes
  std::map<uint64_t, PartialBlock> partial_ ABSL_GUARDED_BY(partial_mutex_);  // by their offsets
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_POSIX_IO_H_
