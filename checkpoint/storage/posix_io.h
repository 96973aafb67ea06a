#ifndef TESSERA_CHECKPOINT_STORAGE_POSIX_IO_H_
#define TESSERA_CHECKPOINT_STORAGE_POSIX_IO_H_

// Reading and writing whole ranges of any alignment, over two descriptors of one file.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt::internal {

// "WriteAt /runs/a: No space left on device" under the code that storage.h promises for `error`.
absl::Status ErrnoStatus(int error, std::string_view operation, std::string_view where);

// The same for reading, where bytes that are known to be lost are DataLoss; EIO, which may pass, is
// Unavailable.
absl::Status ReadErrnoStatus(int error, std::string_view operation, std::string_view where);

// The alignment that memory needs for direct I/O with the file: what the file system says, and
// kIoAlignmentBytes where it does not say.
uint64_t DirectMemoryAlignment(int fd);

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
};

// Applies to files that are opened afterwards; for tests.
void SetIoCalls(const IoCalls& calls);
const IoCalls& CurrentIoCalls();

// One file, opened once through the page cache and, where the file system allows it, once past it
// (O_DIRECT). A large transfer is split at multiples of kIoAlignmentBytes: whole blocks are
// transferred directly, without a copy where the memory is aligned too and through a bounce buffer
// where it is not; the rest, less than a block at either end, goes through the cache. The kernel
// keeps both descriptors coherent: it writes a cached page back before a direct transfer touches it
// and drops it afterwards, so the file's contents are always those of the last write that returned.
//
// Thread-safe for ranges that do not overlap.
class DualFile {
 public:
  // `direct` may be invalid. Transfers under `direct_min_bytes` always go through the cache.
  DualFile(ScopedFd buffered, ScopedFd direct, size_t direct_min_bytes, BouncePool* bounce,
           IoCalls calls = CurrentIoCalls());

  int fd() const { return buffered_.get(); }
  bool direct() const { return direct_usable_.load(std::memory_order_relaxed); }

  // Writes everything or returns an errno.
  int WriteAt(uint64_t offset_bytes, std::span<const std::byte> data);

  // Reads until `out` is full or the file ends, and sets `*read_bytes`. Returns 0 or an errno.
  int ReadAt(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;

  // Closes both. Returns the first errno, or 0.
  int Close();

 private:
  int WriteBuffered(uint64_t offset_bytes, std::span<const std::byte> data);
  int WriteDirect(uint64_t offset_bytes, std::span<const std::byte> data);
  int WriteBounced(uint64_t offset_bytes, std::span<const std::byte> data);
  int ReadFrom(int fd, uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;
  int ReadDirect(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;
  int ReadBounced(uint64_t offset_bytes, std::span<std::byte> out, size_t* read_bytes) const;

  ScopedFd buffered_;
  ScopedFd direct_;
  const size_t direct_min_bytes_;
  const uint64_t memory_alignment_;  // of what is written directly
  BouncePool* const bounce_;
  const IoCalls calls_;
  // Some file systems accept the flag, but refuse the transfer.
  mutable std::atomic<bool> direct_usable_;
};

}  // namespace tessera::ckpt::internal

#endif  // TESSERA_CHECKPOINT_STORAGE_POSIX_IO_H_
