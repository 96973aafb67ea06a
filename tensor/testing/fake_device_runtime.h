#ifndef TESSERA_TENSOR_TESTING_FAKE_DEVICE_RUNTIME_H_
#define TESSERA_TENSOR_TESTING_FAKE_DEVICE_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tensor/device_runtime.h"
#include "tensor/testing/guarded_memory.h"

namespace tessera {

// State shared by devices that exchange data. Their work runs one at a time, on whichever thread
// waits for any of it.
struct FakeFabric {
  FakeFabric() : guarded(std::make_unique<GuardedMemory>(size_t{64} << 30)) {}

  // Returns a fabric whose devices work on the host's memory, for suites that are written for it:
  // any code may touch any memory.
  static std::shared_ptr<FakeFabric> OverHostMemory();

  Mutex mutex;
  CondVar changed;  // work was queued or has run
  // Device memory, which only work of the devices may touch: an access by host code ends the
  // process. Null: device memory is host memory.
  std::unique_ptr<GuardedMemory> guarded;
};

struct FakeDeviceOptions {
  // 0: work runs as late as possible, when something that depends on it is synchronized. Other
  // seeds: at every call, some work of some streams runs, at random.
  uint64_t seed = 0;
  int64_t memory_bytes = int64_t{1} << 30;
  // The shared memory that a block of a kernel may have; of an H100 by default.
  int64_t shared_bytes_of_block = 227 * 1024;
  std::shared_ptr<FakeFabric> fabric;  // null: one of its own
  // Given the number of a call of WaitEvent(), from 0 on, returns whether the call does nothing, as
  // if the program had no such wait. Null: no wait is dropped.
  std::function<bool(int64_t)> drops_wait;
  bool at_once = false;  // work runs when it is queued
  // Given the bytes of a call of AllocatePinned(), returns whether the host has too little memory
  // for it. Null: it never has.
  std::function<bool(int64_t)> lacks_pinned;
};

// A device whose streams run late and in adversarial order: only the order that event waits and
// streams promise is kept. New and freed memory is all ones (NaN). Copies, fills, and kernels that
// ask MemoryAt(), get an error for memory that is not the device's, and for freed memory.
//
// Work runs on threads that call the devices of its fabric. Thread-safe. IsEventDone() also runs at
// most one piece of work that the event depends on, so that polling ends.
//
// As with CUDA, each thread has a current device: the one that it created or selected last, or none
// at first. Creating a stream or an event, recording an event, and queuing work on any other device
// are errors; CUDA forgives some of these.
class FakeDeviceRuntime final : public DeviceRuntime {
 public:
  explicit FakeDeviceRuntime(const FakeDeviceOptions& options = {});
  ~FakeDeviceRuntime() override;

  absl::Status Select() override;

  // Queues work of the test, which stands for a kernel.
  void Enqueue(StreamHandle stream, std::function<void()> work);
  // Queues work that fails: from then on, every call returns an error.
  void Fail(StreamHandle stream);
  bool HasFailed() override { return failed_; }
  // Queues work that other devices of the fabric take part in. `try_run` is called with the fabric
  // locked when the work is first in the stream, until it returns true.
  void EnqueueShared(StreamHandle stream, std::function<bool()> try_run);
  // Runs one piece of work of the stream, if it can run. Called only within shared work.
  bool RunNext(StreamHandle stream) { return RunOne(*static_cast<FakeStream*>(stream)); }
  // Wakes threads that wait for work. Call it when shared work has become able to run.
  void Notify() { fabric_->changed.NotifyAll(); }
  // Returns the most memory that was allocated at once.
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t shared_bytes_of_block() const { return options_.shared_bytes_of_block; }

  // Numbers of calls, from the beginning.
  struct Calls {
    int64_t kernels = 0;      // see CountKernel()
    int64_t copies = 0;       // and fills
    int64_t allocations = 0;  // of the device's and of pinned memory
    int64_t waits = 0;        // of the host for a stream or an event that was not done
  };
  Calls calls() const;
  // Counts a kernel, which is work like other.
  void CountKernel();

  // A piece of memory that Allocate() returned.
  struct Piece {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    bool Holds(const void* address, int64_t bytes) const {
      const auto at = reinterpret_cast<uintptr_t>(address);
      return at >= begin && at <= end && static_cast<uintptr_t>(bytes) <= end - at;
    }
  };
  // Returns the piece of this device's memory that has the address and was not freed, or an empty
  // piece; all addresses, over host memory. Called only within work.
  Piece MemoryAt(const void* address) const;
  // Returns whether work may touch memory: a live piece of the device's, or of pinned memory if
  // `or_pinned`. If not, keeps an error that begins with `what`. Called only within work.
  bool MayTouch(const char* what, const void* address, int64_t bytes, bool or_pinned = false);

  absl::StatusOr<StreamHandle> CreateStream() override;
  void DestroyStream(StreamHandle stream) override;
  absl::Status SynchronizeStream(StreamHandle stream) override;
  absl::StatusOr<EventHandle> CreateEvent() override;
  void DestroyEvent(EventHandle event) override;
  absl::Status RecordEvent(EventHandle event, StreamHandle stream) override;
  absl::Status WaitEvent(StreamHandle stream, EventHandle event) override;
  absl::Status SynchronizeEvent(EventHandle event) override;
  absl::StatusOr<bool> IsEventDone(EventHandle event) override;
  absl::StatusOr<void*> Allocate(StreamHandle stream, int64_t bytes) override;
  absl::Status Free(StreamHandle stream, void* memory) override;
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  void FreePinned(void* memory) override;
  absl::Status Copy(StreamHandle stream, const void* from, int64_t bytes, void* to) override;
  absl::Status Zero(StreamHandle stream, void* memory, int64_t bytes) override;
  absl::StatusOr<MemoryInfo> Memory() override;

 private:
  struct FakeStream;
  // One recording of an event: done once its stream has come to it.
  struct Mark {
    FakeStream* stream = nullptr;
    bool done = false;
  };
  struct FakeEvent {
    std::shared_ptr<Mark> mark;
  };
  struct Work {
    std::function<bool()> try_run;   // false: it cannot run yet; null: nothing to run
    std::shared_ptr<Mark> wait_for;  // null: nothing
  };
  struct FakeStream {
    std::deque<Work> queue;
    bool running = false;  // its first work
  };
  struct FreeMemory {
    FreeMemory() : guarded(false) {}
    explicit FreeMemory(bool is_guarded) : guarded(is_guarded) {}
    bool guarded;  // not to be freed by itself
    void operator()(char* memory) const;
  };
  // Aligned to 256 bytes, as CUDA's memory is.
  struct Block {
    std::unique_ptr<char, FreeMemory> memory;
    int64_t bytes = 0;
    bool on_device = false;
    bool freed = false;

    void Poison();
  };

  // All of these are called with the fabric locked.
  void Add(StreamHandle stream, Work work);
  // Runs the first work of a stream, or a piece of work that it waits for. False if neither can run
  // because another device has not come as far.
  bool RunOne(FakeStream& stream);
  bool RunTowards(const Mark& mark);
  void RunSome();
  const Block* FindBlock(const void* address) const;
  void* NewBlock(int64_t bytes, bool on_device);
  // Runs a piece of work with the guarded memory open.
  bool TryRun(const Work& work);
  absl::Status TakeError() { return failed_ ? Failure() : std::exchange(error_, absl::OkStatus()); }
  static absl::Status Failure();
  // Returns FailedPrecondition if the device is not the calling thread's.
  absl::Status CheckSelected(const char* what) const;

  const FakeDeviceOptions options_;
  const std::shared_ptr<FakeFabric> fabric_;
  std::mt19937_64 random_;
  int64_t live_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t waits_ = 0;
  Calls calls_;
  std::atomic<bool> failed_ = false;
  absl::Status error_;  // of work, until the next synchronization
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::map<EventHandle, std::unique_ptr<FakeEvent>> events_;
  std::map<const char*, std::unique_ptr<Block>> blocks_;  // by their first byte
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_TESTING_FAKE_DEVICE_RUNTIME_H_
