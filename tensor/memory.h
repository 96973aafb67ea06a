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

// The purpose of a buffer. A buffer belongs to the category that was current when it was allocated.
enum class MemoryCategory {
  kOther,
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
};
inline constexpr int kMemoryCategoryCount = 6;
// "weights", say.
std::string_view MemoryCategoryName(MemoryCategory category);
// The category that the calling thread has now.
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

// Usage over all buffers, and of one category. Counts the requested sizes, without rounding to
// pages. Thread-safe.
MemoryUse TensorMemory();
MemoryUse TensorMemory(MemoryCategory category);
// Sets the peak to the live bytes.
void ResetPeakMemory();

// The memory that this process may still allocate without causing swapping or its own death: the
// kernel's estimate (MemAvailable), or the limit of control groups where that is less.
int64_t AvailableHostMemory();

// Host memory, zero-initialised, 4096-byte aligned; large buffers use huge pages and are touched
// lazily. Counted until the last reference is released. A size of zero gives a valid pointer. If
// memory runs out, the process ends with a message that gives the sizes.
std::shared_ptr<void> AllocateHostMemory(int64_t size_bytes);

// In its scope, a GPU that has no memory left does not end the process: the calling thread's Tensor
// is empty, and End() says why, before anything uses the tensor. Scopes nest: the innermost one
// takes the error.
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

  // Ends the scope. Returns its first error: ResourceExhausted, which says what uses the memory.
  absl::Status End();

 private:
  friend std::shared_ptr<void> AllocateDeviceMemory(int device, int64_t size_bytes);

  AllocationScope* const previous_;
  bool ended_ = false;
  absl::Status status_;
};

// Memory of a GPU, counted like host memory. If the GPU has none left: null in an AllocationScope;
// elsewhere the process ends with a message that says what uses it. Precondition: SetDeviceMemory()
// was called for the GPU.
std::shared_ptr<void> AllocateDeviceMemory(int device, int64_t size_bytes);
// Allocates on one GPU. Thread-safe, and returns zeros. See device_tensors.h.
using DeviceAllocator = std::function<absl::StatusOr<std::shared_ptr<void>>(int64_t size_bytes)>;
// How AllocateDeviceMemory() allocates on one GPU; null: not at all from now on.
void SetDeviceMemory(int device, DeviceAllocator allocate);

}  // namespace tessera

#endif  // TESSERA_TENSOR_MEMORY_H_
