#ifndef TESSERA_STORAGE_TRANSFER_RING_H_
#define TESSERA_STORAGE_TRANSFER_RING_H_

// Transfers in flight through io_uring. Every thread has a ring of its own, made with its first
// transfer and gone with the thread, so that nothing is locked. A process that was forked makes new
// ones, and leaves those of its parent alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tessera::internal {

// Used by the thread that started it.
class RingTransfer {
 public:
  // Starts to read into the memory, or to write from it. Null where the kernel, or a filter of
  // system calls, refuses io_uring, where TESSERA_IO_URING=0 is in the environment, and while the
  // thread has as many transfers in flight as its ring has room for.
  static std::unique_ptr<RingTransfer> Start(bool write, int fd, uint64_t offset_bytes,
                                             std::span<const std::byte> memory);
  RingTransfer(const RingTransfer&) = delete;
  RingTransfer& operator=(const RingTransfer&) = delete;
  // Waits until the kernel has left the memory alone.
  ~RingTransfer() { Wait(); }

  // Waits for the end: the bytes transferred, or a negative errno.
  int Wait();

 private:
  class Ring;
  explicit RingTransfer(Ring* ring) : ring_(ring) {}

  Ring* const ring_;
  bool done_ = false;
  int result_ = 0;
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_TRANSFER_RING_H_
