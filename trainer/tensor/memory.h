#ifndef TESSERA_TRAINER_TENSOR_MEMORY_H_
#define TESSERA_TRAINER_TENSOR_MEMORY_H_

// Allocation of the memory of all Tensors, and accounting for it.

#include <cstdint>
#include <memory>
#include <string_view>

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

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_MEMORY_H_
