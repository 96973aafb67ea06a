#ifndef TESSERA_STORAGE_TRANSFER_RING_H_
#define TESSERA_STORAGE_TRANSFER_RING_H_

// Transfers in flight through io_uring. Every thread has a ring of its own, made with its first
// transfer and destroyed with the thread, so that nothing is locked. A forked process makes new
// rings, and does not touch its parent's.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tessera::internal {

// A transfer, used only by the thread that started it.
class RingTransfer {
 public:
  // Starts to read into the memory, or to write from it. Returns null if the kernel, or a filter of
  // system calls, refuses io_uring, if TESSERA_IO_URING=0 is in the environment, and while the
  // thread's ring is full.
  static std::unique_ptr<RingTransfer> Start(bool write, int fd, uint64_t offset_bytes,
                                             std::span<const std::byte> memory);
  RingTransfer(const RingTransfer&) = delete;
  RingTransfer& operator=(const RingTransfer&) = delete;
  // Waits until the kernel no longer uses the memory.
  ~RingTransfer() { Wait(); }

  // Waits for the end. Returns the bytes transferred, or a negative errno.
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
