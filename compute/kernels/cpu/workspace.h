#ifndef TESSERA_COMPUTE_KERNELS_CPU_WORKSPACE_H_
#define TESSERA_COMPUTE_KERNELS_CPU_WORKSPACE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/memory.h"

namespace tessera {

// Scratch memory that grows to the requested size and is reused. Contents are undefined at the
// start of an operation.
class Workspace {
 public:
  explicit Workspace(int threads) : per_thread_(threads) {}

  // Returns memory shared by the threads of one operation. Must be called by the calling thread,
  // outside of a loop.
  template <typename T>
  T* Shared(int64_t count) {
    return static_cast<T*>(shared_.Get(count * static_cast<int64_t>(sizeof(T))));
  }
  // Grows every thread's own memory to at least this size, so that the total does not depend on
  // which threads run a task. Must be called by the calling thread, outside of a loop.
  void ReservePerThread(int64_t size_bytes) {
    for (ScratchBuffer& buffer : per_thread_) buffer.Get(size_bytes);
  }
  // Returns the thread's own memory. A thread has one buffer, so an operation requests everything
  // for a block at once.
  template <typename T>
  T* OfThread(int thread, int64_t count) {
    return static_cast<T*>(per_thread_[thread].Get(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  class ScratchBuffer {
   public:
    void* Get(int64_t size_bytes) {
      if (size_bytes > capacity_bytes_ || memory_ == nullptr) {
        MemoryScope scope(MemoryCategory::kWorkspace);
        memory_.reset();  // first, so that the two are never live together
        memory_ = AllocateHostMemory(size_bytes);
        capacity_bytes_ = size_bytes;
      }
      return memory_.get();
    }

   private:
    std::shared_ptr<void> memory_;
    int64_t capacity_bytes_ = 0;
  };

  ScratchBuffer shared_;
  std::vector<ScratchBuffer> per_thread_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_WORKSPACE_H_
