#ifndef TESSERA_TENSOR_MEMORY_H_
#define TESSERA_TENSOR_MEMORY_H_

// Allocation of the memory of all Tensors, and accounting for it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The purpose of a buffer: the category that was current when it was allocated.
enum class MemoryCategory {
  kOther,
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
};
inline constexpr int kMemoryCategoryCount = 6;
// Returns a name such as "weights".
std::string_view MemoryCategoryName(MemoryCategory category);
// Returns the calling thread's current category.
MemoryCategory CurrentMemoryCategory();

// Sets this thread's category until the end of the scope. Scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory previous_;
};

struct MemoryUse {
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;  // since the start, or since the last ResetPeakMemory()
};

// Returns the use of memory by all buffers, or by those of one category. Counts the requested
// sizes, without rounding to pages. Thread-safe.
MemoryUse TensorMemory();
MemoryUse TensorMemory(MemoryCategory category);
// Sets the peak to the live bytes.
void ResetPeakMemory();

// Returns the memory that this process may still allocate without causing swapping or its own
// death: the kernel's estimate (MemAvailable), or the room in control groups if it is less.
int64_t AvailableHostMemory();

// Allocates host memory, zero-initialised and 4096-byte aligned; large buffers use huge pages and
// are touched lazily. The memory is counted until the last reference is released. A size of zero
// gives a valid pointer. If memory runs out, the process ends with a message that gives the sizes.
std::shared_ptr<void> AllocateHostMemory(int64_t size_bytes);

// A scope in which a GPU without free memory ends no caller by an exception. Instead, the calling
// thread's Tensor is empty, and End(), which must be called before the tensor is used, returns the
// reason. Scopes nest: the innermost one takes the error.
//
//   AllocationScope allocations;
//   Tensor x(DType::kF32, {rows, columns}, device);
//   TESSERA_RETURN_IF_ERROR(allocations.End());
class AllocationScope {
 public:
  AllocationScope();
  ~AllocationScope() { End().IgnoreError(); }
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

  // Ends the scope. Returns its first error: ResourceExhausted, which says what uses the memory, or
  // the error of work that has failed on the device.
  absl::Status End();

 private:
  friend std::shared_ptr<void> AllocateDeviceMemory(int device, int64_t size_bytes);

  AllocationScope* const previous_;
  bool ended_ = false;
  absl::Status status_;
};

// Allocates memory of a GPU, counted like host memory. If the GPU has none left, or its work has
// failed, returns null in an AllocationScope; elsewhere throws NoMemory with the error.
// Precondition: SetDeviceMemory() was called for the GPU.
std::shared_ptr<void> AllocateDeviceMemory(int device, int64_t size_bytes);
// Allocates zeroed memory on one GPU. Thread-safe. See device_tensors.h.
using DeviceAllocator = std::function<absl::StatusOr<std::shared_ptr<void>>(int64_t size_bytes)>;
// Sets how AllocateDeviceMemory() allocates on one GPU; null: no longer.
void SetDeviceMemory(int device, DeviceAllocator allocate);

}  // namespace tessera

#endif  // TESSERA_TENSOR_MEMORY_H_
