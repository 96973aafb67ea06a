#ifndef TESSERA_CHECKPOINT_INCLUDE_DEVICE_MEMORY_H_
#define TESSERA_CHECKPOINT_INCLUDE_DEVICE_MEMORY_H_

// The operations that saves and loads need from memory that the processor cannot address, such as a
// GPU's. A program implements them over its own device library.
//
// Implemented by programs; checkpoint/elements/device_copies.cc calls it.

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// Copies in flight between a device and host memory, which must stay valid, and untouched by
// others, until Wait() has returned OK or this object has been destroyed.
class PendingCopy {
 public:
  // Waits for the copies if Wait() was not called or has failed. No byte of the host memory is
  // touched after the destructor returns.
  virtual ~PendingCopy() = default;

  // Waits for the end of the copies. Called at most once.
  virtual absl::Status Wait() = 0;
};

// The memory of one device or of several. Shards name it, see Shard::OnDevice().
//
// Order: the copies of a save read the results of the work that the program started on the device
// before the save. Work started after the copy of a shard must not overtake the copy. A program
// orders its own work behind a copy once AsyncSaver::WaitUntilCopied() has returned for the shard,
// which it does when the copy is started. After a load, the elements are in place for all later
// work.
//
// An error ends the save or load with its code and message.
//
// Threads: several threads of the library call it at once.
class DeviceMemory {
 public:
  // A box of a shard, and its place in host memory.
  struct BoxCopy {
    void* handle;      // Shard::handle
    Box box;           // whose offset counts from the shard's first element
    std::byte* host;   // row-major and contiguous
    DType host_dtype;  // where it is not the shard's, the device converts, see below
  };
  enum class Direction { kToHost, kToDevice };

  virtual ~DeviceMemory() = default;

  // Starts copies, all at once. `copies` and what it points to, except for the host memory, need
  // to live during the call only. To the host, dtypes are equal. To the device, they are equal, or
  // F32 becomes BF16 or F16, rounded to nearest, ties to even, or BF16 or F16 becomes F32.
  virtual absl::StatusOr<std::unique_ptr<PendingCopy>> StartCopies(std::span<const BoxCopy> copies,
                                                                   Direction direction) = 0;

  // Allocates page-locked host memory, aligned to 4096 bytes, and frees it. If a state has several
  // devices, memory of one serves the copies of all.
  virtual absl::StatusOr<std::byte*> Allocate(size_t size_bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_DEVICE_MEMORY_H_
