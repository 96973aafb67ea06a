#ifndef TESSERA_CHECKPOINT_LOAD_DEVICE_SLOTS_H_
#define TESSERA_CHECKPOINT_LOAD_DEVICE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/elements/device_copies.h"

namespace tessera::ckpt {

// The page-locked memory through which a load copies elements to devices, in slots of one size.
// Copies of a slot are started together when it has no more room, and waited for when the slot is
// needed again. So copies overlap with reading, and many small tensors share one start. The
// destructor waits for copies in flight.
class DeviceSlots {
 public:
  // Allocates, from one of the devices, two slots for each thread, or fewer where `total_bytes` of
  // elements need no more; together at most `limit_bytes`, or a page.
  static absl::StatusOr<std::unique_ptr<DeviceSlots>> Create(std::shared_ptr<DeviceMemory> device,
                                                             uint64_t total_bytes,
                                                             uint64_t limit_bytes, int threads);

  // Calls fill(memory, copies), which writes `bytes` bytes, at most slot_bytes(), and adds their
  // copies. Waits for the devices if no slot has room. Thread-safe.
  absl::Status Fill(uint64_t bytes, const std::function<void(std::byte*, DeviceCopies&)>& fill);
  uint64_t slot_bytes() const { return slot_bytes_; }

  // Waits until all copies have ended. Call once all is filled, or the last copies are not made.
  absl::Status Finish();

 private:
  struct Slot {
    std::byte* memory;
    uint64_t used_bytes = 0;
    DeviceCopies copies = {};
  };

  DeviceSlots(PageLockedMemory memory, uint64_t slot_bytes, uint64_t count);
  // Takes a slot that has room, for the calling thread alone.
  absl::StatusOr<Slot*> Take(uint64_t bytes);
  // Starts the copies of the first open slot, and waits for those that were started first.
  absl::Status StartFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t slot_bytes_;
  const PageLockedMemory memory_;
  std::deque<Slot> slots_;
  Mutex mutex_;
  CondVar changed_;
  // Slots that no thread has taken; partly filled ones come first.
  std::deque<Slot*> open_ ABSL_GUARDED_BY(mutex_), in_flight_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_DEVICE_SLOTS_H_
