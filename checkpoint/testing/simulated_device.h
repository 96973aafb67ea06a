#ifndef TESSERA_CHECKPOINT_TESTING_SIMULATED_DEVICE_H_
#define TESSERA_CHECKPOINT_TESTING_SIMULATED_DEVICE_H_

// A device for tests, on whose memory no process can lay hands: a shard's address leads to pages
// that cannot be accessed, and its elements are elsewhere.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/include/device_memory.h"
#include "checkpoint/include/state_dict.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// Copies are executed one after the other, as late as possible: when one of them, or one that was
// started later, is waited for or given up. Until then host memory that receives elements holds
// garbage. Thread-safe.
//
// The function problems() lists what no program may do to a device:
// - copies from and to memory that is not page-locked, or was freed;
// - freeing what is in use;
// - boxes outside of shards;
// - conversions that no device has to know.
class SimulatedDevice final : public DeviceMemory {
 public:
  enum class Call { kStart, kWait, kAllocate, kRelease, kFree };
  struct Event {
    Call call;
    int64_t copy;  // counts the calls of StartCopies(); of kStart, kWait and kRelease
    Direction direction;
    size_t boxes;          // of kStart
    bool started = false;  // of kStart: it did not fail
  };

  ~SimulatedDevice() override;

  // Moves the elements of a shard in host memory, where garbage remains, to the device.
  void Take(Shard& shard, DType dtype);
  void Take(StateDict& state);
  // Copies the elements of all shards to where they were taken from, at once, and returns the
  // shards as they were.
  std::vector<Shard> ReadBack();
  // Forgets all shards, which must not be used any more.
  void Forget();
  // Fills the memory of all shards with a byte, in the order of the copies.
  void StartToFill(std::byte value);

  // Makes the n-th kStart, kWait or kAllocate from now on fail, and all later ones; 0: none.
  void FailFrom(Call call, int64_t n);
  // Is called at the beginning of each kWait.
  void BeforeWait(std::function<void()> hook);

  std::vector<Event> log() const;
  size_t Count(Call call) const;
  size_t most_in_flight() const;  // copies, at any time
  size_t allocated_bytes() const;
  size_t most_allocated_bytes() const;
  std::vector<std::string> problems() const;

  absl::StatusOr<std::unique_ptr<PendingCopy>> StartCopies(std::span<const BoxCopy> copies,
                                                           Direction direction) override;
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override;
  void Free(std::byte* memory) override;

 private:
  class Copy;
  struct Array {
    Shard host;  // where the elements were taken from
    DType dtype;
    std::vector<int64_t> strides;
    std::vector<std::byte> elements;
    void* address;  // the pages that may not be touched
  };
  struct Work {
    int64_t copy;  // 0: none
    std::function<void()> execute;
    std::vector<std::byte*> memory;  // allocations that it uses
  };

  absl::Status Enter(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExecuteUntil(int64_t copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CopyBox(const BoxCopy& copy, Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the allocation that contains all of the memory; null, with a problem, for none.
  std::byte* AllocationOf(const std::byte* memory, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::deque<Array> arrays_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, size_t> allocations_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Direction> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event> log_ ABSL_GUARDED_BY(mutex_);
  std::map<Call, int64_t> fail_in_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> before_wait_ ABSL_GUARDED_BY(mutex_) = [] {};
  size_t most_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0, most_allocated_bytes_
                                                       ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copies_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TESTING_SIMULATED_DEVICE_H_
