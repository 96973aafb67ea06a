#ifndef TESSERA_TENSOR_DEVICE_H_
#define TESSERA_TENSOR_DEVICE_H_

// Streams, events and memory of a device as owning types.
//
// Only methods named Synchronize() and Drain() wait. Queuing work returns no error: the
// DeviceContext keeps the first one until the end of the step, see TakeError().

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tensor/device_runtime.h"

namespace tessera {

// One device, its errors, and the uses of its memory. Outlives all that is made from it.
// Thread-safe.
class DeviceContext {
 public:
  explicit DeviceContext(std::unique_ptr<DeviceRuntime> runtime);

  DeviceRuntime& runtime() { return *runtime_; }

  // Returns the first error since the last call; its message says what could not be done.
  absl::Status TakeError() ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps an error, unless there is one already. `what` could not be done; empty: the status says
  // it.
  void KeepError(std::string_view what, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Names the operation that is queued from now on. `name` is a literal.
  void SetOperation(const char* name) { operation_.store(name, std::memory_order_relaxed); }
  // Whether each operation is waited for after it was queued, so that its error bears its name: by
  // the environment's TESSERA_CUDA_SYNC=1. A step is slower then.
  bool waits_for_operations() const { return waits_for_operations_; }
  // Returns an error, with the operation that was queued last if work has failed on the device: it
  // may be that one's, or an earlier one's.
  absl::Status Explained(const absl::Status& status);

  // Sets a function that makes progress on what the device's work depends on besides itself: other
  // ranks. It is called repeatedly, on any thread, while a Synchronize() of this context's streams
  // and events waits, and once when the wait has ended. An error from it ends the wait, and
  // Synchronize() returns it. Null: no function. Returns when no call of the previous function is
  // in progress.
  void SetProgress(std::function<absl::Status()> progress) ABSL_LOCKS_EXCLUDED(progress_mutex_);
  // Waits for an event that was recorded.
  absl::Status Await(DeviceRuntime::EventHandle event) ABSL_LOCKS_EXCLUDED(progress_mutex_);

  // Adds to the bytes that are used for one purpose.
  void CountMemory(const std::string& purpose, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the sum over all purposes.
  int64_t allocated_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns "300 bytes of weights, 20 bytes of activations", the largest first.
  std::string DescribeMemory() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::unique_ptr<DeviceRuntime> runtime_;
  const bool waits_for_operations_;
  std::atomic<const char*> operation_ = nullptr;
  mutable Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> bytes_by_purpose_ ABSL_GUARDED_BY(mutex_);
  absl::Status MakeProgress() ABSL_LOCKS_EXCLUDED(progress_mutex_);

  Mutex progress_mutex_;
  std::function<absl::Status()> progress_ ABSL_GUARDED_BY(progress_mutex_);
};

class Event;

// A queue of work that runs in order. Move-only. Work that is still queued at destruction is done.
class Stream {
 public:
  static absl::StatusOr<Stream> Create(DeviceContext& context);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  DeviceContext& context() const { return *context_; }
  // Returns the stream's handle, a cudaStream_t for CUDA.
  DeviceRuntime::StreamHandle handle() const { return handle_; }

  // Queues a copy between any of device memory and pinned memory.
  void Copy(const void* from, int64_t bytes, void* to);
  // Queues setting device memory to zeros.
  void Zero(void* memory, int64_t bytes);
  // Makes work that is queued from now on run after the event as last recorded. CHECKs that it was
  // recorded, since waiting for any other event would not wait.
  void Wait(const Event& event);
  // Waits until everything queued is done. Returns, once, the first error of the context.
  absl::Status Synchronize();
  // Waits until everything queued is done. Returns only the error of the wait.
  absl::Status Drain();

 private:
  Stream(DeviceContext& context, DeviceRuntime::StreamHandle handle)
      : context_(&context), handle_(handle) {}

  DeviceContext* context_;
  DeviceRuntime::StreamHandle handle_;  // null: moved from
};

// A point in a stream's work. Move-only.
class Event {
 public:
  static absl::StatusOr<Event> Create(DeviceContext& context);
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  ~Event();

  DeviceRuntime::EventHandle handle() const { return handle_; }
  bool recorded() const { return recorded_; }

  // Moves the event to the end of what is queued on the stream now.
  void Record(const Stream& stream);
  // Both CHECK that the event was recorded.
  absl::StatusOr<bool> IsDone() const;
  absl::Status Synchronize() const;

 private:
  Event(DeviceContext& context, DeviceRuntime::EventHandle handle)
      : context_(&context), handle_(handle) {}

  DeviceContext* context_;
  DeviceRuntime::EventHandle handle_;  // null: moved from
  bool recorded_ = false;
};

// Device memory in the order of a stream: work that is queued there after Allocate() may use it,
// and it is freed after the work that is queued there at destruction. Other streams must wait for
// events. Move-only; the stream outlives it.
class DeviceBuffer {
 public:
  // ResourceExhausted names `purpose` and the uses of the device's memory.
  static absl::StatusOr<DeviceBuffer> Allocate(Stream& stream, int64_t bytes, std::string purpose);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  DeviceBuffer(Stream& stream, void* data, int64_t bytes, std::string purpose)
      : context_(&stream.context()),
        stream_(stream.handle()),
        data_(data),
        bytes_(bytes),
        purpose_(std::move(purpose)) {}

  DeviceContext* context_;
  DeviceRuntime::StreamHandle stream_;
  void* data_;  // null: moved from
  int64_t bytes_;
  std::string purpose_;
};

// Host memory that the device copies to and from by itself. Move-only. Callers synchronize before
// they destroy a buffer that is still being copied.
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Allocate(DeviceContext& context, int64_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) = delete;
  ~PinnedBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  PinnedBuffer(DeviceContext& context, void* data, int64_t bytes)
      : context_(&context), data_(data), bytes_(bytes) {}

  DeviceContext* context_;
  void* data_;  // null: moved from
  int64_t bytes_;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_DEVICE_H_
