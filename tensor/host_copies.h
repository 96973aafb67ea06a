#ifndef TESSERA_TENSOR_HOST_COPIES_H_
#define TESSERA_TENSOR_HOST_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor/device.h"

namespace tessera {

// Copies between ordinary host memory and a device, on one stream, through pinned memory of its
// own. For small or rare data: token ids, losses, weights at the start. Not thread-safe.
class HostCopies {
 public:
  struct Options {
    int64_t slot_bytes = int64_t{1} << 20;
    int slots = 16;
  };
  // The stream outlives the copies.
  static absl::StatusOr<std::unique_ptr<HostCopies>> Create(Stream& stream);
  static absl::StatusOr<std::unique_ptr<HostCopies>> Create(Stream& stream, Options options);
  // Waits for copies that are still queued.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Queues a copy; the caller may change `from` afterwards. Waits only if every slot holds bytes
  // that are still to be copied.
  absl::Status ToDevice(const void* from, int64_t bytes, void* to);
  // Copies after the work that is queued on the stream so far, and waits for the copy.
  absl::Status ToHost(const void* from, int64_t bytes, void* to);
  // Queues a copy of at most kLaterBytes, which Deliver() ends. Waits only if more bytes than that
  // are on their way together.
  absl::Status ToHostLater(const void* from, int64_t bytes, std::shared_ptr<void> to);
  // Hands over what ToHostLater() has copied. Call it when the stream's work has been waited for.
  void Deliver();

  static constexpr int64_t kLaterBytes = 4096;

 private:
  struct Slot {
    PinnedBuffer memory;
    Event copied;  // recorded behind the last copy
  };
  struct Later {
    const char* from;  // in later_memory_
    int64_t bytes;
    std::shared_ptr<void> to;
  };
  HostCopies(Stream& stream, int64_t slot_bytes, PinnedBuffer later_memory)
      : stream_(stream), slot_bytes_(slot_bytes), later_memory_(std::move(later_memory)) {}

  Stream& stream_;
  const int64_t slot_bytes_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  const PinnedBuffer later_memory_;
  int64_t later_bytes_ = 0;  // in use
  std::vector<Later> later_;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_HOST_COPIES_H_
