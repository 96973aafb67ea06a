#ifndef TESSERA_TRAINER_TENSOR_MEMORY_H_
#define TESSERA_TRAINER_TENSOR_MEMORY_H_

// Where the memory of all Tensors comes from, and how much of it there is.

#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera {

// What a buffer is for. Buffers belong to the category that was current where they were made.
enum class MemoryCategory {
  kOther,
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
};
inline constexpr int kMemoryCategoryCount = 6;

std::string_view MemoryCategoryName(MemoryCategory category);

// Sets this thread's category until the end of the scope; scopes nest.
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

// Of all buffers, and of one category. Counts what was asked for, not rounding to pages.
// Thread-safe.
MemoryUse TensorMemory();
MemoryUse TensorMemory(MemoryCategory category);
// The peak becomes what is live now.
void ResetPeakMemory();

// What this process may still take of the machine's memory without driving it to swap or to its
// death: the kernel's estimate (MemAvailable), or what control groups leave where that is less.
int64_t AvailableHostMemory();

// Host memory, zero-initialised, 4096-byte aligned; on huge pages, and touched lazily, where it is
// large. Counted until the last reference is gone. Zero bytes give a valid pointer. Out of memory
// ends the process with the sizes.
std::shared_ptr<void> AllocateHostMemory(int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_MEMORY_H_
