#include "storage/transfer_ring.h"

#include <liburing.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace tessera::internal {
namespace {

constexpr int kRingTransfers = 16;

bool IsRingWanted() {
  const char* const setting = getenv("TESSERA_IO_URING");
  return setting == nullptr || std::string_view(setting) != "0";
}

}  // namespace

class RingTransfer::Ring {
 public:
  // Null where the thread has no ring.
  static Ring* OfThisThread() {
    thread_local std::unique_ptr<Ring> ring;
    // The parent's ring is shared memory: not even its end may be this process's work.
    if (ring != nullptr && ring->process_ != getpid()) ring.release();
    if (ring == nullptr && IsRingWanted()) {
      ring.reset(new Ring);
      if (io_uring_queue_init(kRingTransfers, &ring->ring_, 0) != 0) {
        ring->process_ = 0;
        ring.reset();
      }
    }
    return ring.get();
  }

  ~Ring() {
    if (process_ == getpid()) io_uring_queue_exit(&ring_);
  }

  bool Start(bool write, int fd, uint64_t offset_bytes, std::span<const std::byte> memory,
             RingTransfer* transfer) {
    if (broken_ || in_flight_ == kRingTransfers) return false;
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return false;
    const auto size = static_cast<unsigned>(memory.size());
    if (write) {
      io_uring_prep_write(entry, fd, memory.data(), size, offset_bytes);
    } else {
      io_uring_prep_read(entry, fd, const_cast<std::byte*>(memory.data()), size, offset_bytes);
    }
    io_uring_sqe_set_data(entry, transfer);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR);
    // What was not submitted stays in the ring, which therefore submits nothing more.
    broken_ = submitted != 1;
    in_flight_ += submitted == 1 ? 1 : 0;
    return !broken_;
  }

  void WaitFor(const RingTransfer& transfer) {
    while (!transfer.done_) {
      io_uring_cqe* completion = nullptr;
      const int error = io_uring_wait_cqe(&ring_, &completion);
      if (error == 0) {
        auto* const ended = static_cast<RingTransfer*>(io_uring_cqe_get_data(completion));
        ended->result_ = completion->res;
        ended->done_ = true;
        io_uring_cqe_seen(&ring_, completion);
        --in_flight_;
      } else if (error != -EINTR) {
        // The memory is the kernel's until the transfer has ended, whatever waiting says.
        constexpr timespec kMillisecond = {0, 1'000'000};
        nanosleep(&kMillisecond, nullptr);
      }
    }
  }

 private:
  Ring() : process_(getpid()) {}

  io_uring ring_ = {};
  pid_t process_;
  int in_flight_ = 0;
  bool broken_ = false;
};

std::unique_ptr<RingTransfer> RingTransfer::Start(bool write, int fd, uint64_t offset_bytes,
                                                  std::span<const std::byte> memory) {
  Ring* const ring = Ring::OfThisThread();
  if (ring == nullptr) return nullptr;
  std::unique_ptr<RingTransfer> transfer(new RingTransfer(ring));
  if (ring->Start(write, fd, offset_bytes, memory, transfer.get())) return transfer;
  transfer->done_ = true;
  return nullptr;
}

int RingTransfer::Wait() {
  if (!done_) ring_->WaitFor(*this);
  return result_;
}

}  // namespace tessera::internal
