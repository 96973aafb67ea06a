#ifndef TESSERA_TENSOR_DEVICE_RUNTIME_H_
#define TESSERA_TENSOR_DEVICE_RUNTIME_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The streams, events and memory of a device, as the types of device.h need them. Implementations:
// CUDA's runtime library, and a fake one for tests whose streams run late.
//
// Calls with a stream queue work and return before it is done; their errors say only that it could
// not be queued. Thread-safe.
class DeviceRuntime {
 public:
  // cudaStream_t and cudaEvent_t for CUDA.
  using StreamHandle = void*;
  using EventHandle = void*;
  struct MemoryInfo {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
  };

  virtual ~DeviceRuntime() = default;

  // Makes the device the calling thread's, for work that other libraries queue on it.
  virtual absl::Status Select() { return absl::OkStatus(); }

  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  // Destroys a stream. Work that is queued is still done.
  virtual void DestroyStream(StreamHandle stream) = 0;
  virtual absl::Status SynchronizeStream(StreamHandle stream) = 0;

  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  // Moves the event to the end of what is queued on the stream now.
  virtual absl::Status RecordEvent(EventHandle event, StreamHandle stream) = 0;
  // Makes work that is queued on the stream from now on wait for the event as last recorded.
  virtual absl::Status WaitEvent(StreamHandle stream, EventHandle event) = 0;
  virtual absl::Status SynchronizeEvent(EventHandle event) = 0;
  virtual absl::StatusOr<bool> IsEventDone(EventHandle event) = 0;

  // Allocates device memory for work that is queued on the stream after the call and before Free().
  // ResourceExhausted if too little memory is left.
  virtual absl::StatusOr<void*> Allocate(StreamHandle stream, int64_t bytes) = 0;
  virtual absl::Status Free(StreamHandle stream, void* memory) = 0;
  // Allocates host memory that copies run to and from without the host's help.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  // Copies between device memory and pinned memory, in any direction.
  virtual absl::Status Copy(StreamHandle stream, const void* from, int64_t bytes, void* to) = 0;
  // Sets device memory to zeros.
  virtual absl::Status Zero(StreamHandle stream, void* memory, int64_t bytes) = 0;

  // Gives memory that was freed, and kept for the next allocations, to other processes.
  virtual void TrimMemory() {}

  // Returns whether work has failed on the device, after which every call returns that error.
  virtual bool HasFailed() { return false; }

  // Returns the memory of the device at this moment, as all its processes use it.
  virtual absl::StatusOr<MemoryInfo> Memory() = 0;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_DEVICE_RUNTIME_H_
