#include "compute/kernels/cpu/workspace.h"

#include <cstdint>

#include "compute/tensor/memory.h"

namespace tessera {

void* Workspace::ScratchBuffer::Get(int64_t size_bytes) {
  if (size_bytes > capacity_bytes_ || memory_ == nullptr) {
    MemoryScope scope(MemoryCategory::kWorkspace);
    memory_.reset();  // first, so that the two are never live together
    memory_ = AllocateHostMemory(size_bytes);
    capacity_bytes_ = size_bytes;
  }
  return memory_.get();
}

}  // namespace tessera
