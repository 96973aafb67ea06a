#include "tests/perf/allocated_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

void* Allocate(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  const int64_t now = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  if (now > peak_bytes.load(std::memory_order_relaxed)) peak_bytes = now;
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace tessera {

int64_t AllocatedBytes() { return live_bytes; }
int64_t PeakAllocatedBytes() { return peak_bytes; }
void ResetPeak() { peak_bytes = live_bytes.load(); }

}  // namespace tessera
