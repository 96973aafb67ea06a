#ifndef TESSERA_TRAINER_TENSOR_FAKE_DEVICE_RUNTIME_H_
#define TESSERA_TRAINER_TENSOR_FAKE_DEVICE_RUNTIME_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/tensor/device_runtime.h"

namespace tessera {

struct FakeDeviceOptions {
  // 0: work runs as late as it may, when something is synchronized that depends on it. Others: at
  // every call, some work of some streams runs, at random.
  uint64_t seed = 0;
  int64_t memory_bytes = int64_t{1} << 30;
};

// A device in host memory whose streams run late and in adversarial order: all that only an event
// wait, or the order of a stream, promises does happen, and nothing else. New memory, and memory
// that was given back, is all ones (NaN). Copies that touch memory given back are errors. Runs on
// the calling thread; not thread-safe.
class FakeDeviceRuntime final : public DeviceRuntime {
 public:
  explicit FakeDeviceRuntime(const FakeDeviceOptions& options = {});
  ~FakeDeviceRuntime() override;

  // Queues work of the test's own: a kernel.
  void Enqueue(StreamHandle stream, std::function<void()> work);

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
    std::function<void()> run;
    std::shared_ptr<Mark> wait_for;  // null: nothing
  };
  struct FakeStream {
    std::deque<Work> queue;
  };
  struct Block {
    std::vector<char> bytes;
    bool freed = false;
  };

  void Add(StreamHandle stream, Work work);
  // Runs the first work of a stream, after what it waits for.
  void RunOne(FakeStream& stream);
  void RunUntilDone(const Mark& mark);
  void RunSome();
  bool TouchesFreedMemory(const void* address) const;

  FakeDeviceOptions options_;
  std::mt19937_64 random_;
  int64_t live_bytes_ = 0;
  absl::Status error_;  // of work, until the next synchronization
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::map<EventHandle, std::unique_ptr<FakeEvent>> events_;
  std::map<const char*, std::unique_ptr<Block>> blocks_;  // by their first byte
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_FAKE_DEVICE_RUNTIME_H_
