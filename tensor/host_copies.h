#ifndef TESSERA_TENSOR_HOST_COPIES_H_
#define TESSERA_TENSOR_HOST_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
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

 private:
  struct Slot {
    PinnedBuffer memory;
    Event copied;  // recorded behind the last copy
  };
  HostCopies(Stream& stream, int64_t slot_bytes) : stream_(stream), slot_bytes_(slot_bytes) {}

  Stream& stream_;
  const int64_t slot_bytes_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_HOST_COPIES_H_
