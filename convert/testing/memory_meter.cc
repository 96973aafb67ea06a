#include "convert/testing/memory_meter.h"

#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_HAS_ALLOCATION_HOOKS 1
#include <sanitizer/allocator_interface.h>
#endif
#endif

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> live = 0;
std::atomic<int64_t> peak = 0;
std::atomic<int64_t> limit_bytes = kNoLimit;

// Must not allocate.
void CountAllocation(size_t size) {
  const int64_t limit = limit_bytes.load(std::memory_order_relaxed);
  if (limit == kNoLimit) return;
  const int64_t now = live += static_cast<int64_t>(size);
  int64_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
  if (now <= limit) return;
  limit_bytes = kNoLimit;  // what reports the failure allocates
  char text[160];
  const int length =
      std::snprintf(text, sizeof(text),
                    "the input takes %lld bytes of memory, at most %lld are allowed;"
                    " the last allocation is of %zu\n",
                    static_cast<long long>(now), static_cast<long long>(limit), size);
  (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
  std::abort();
}

void CountRelease(size_t size) {
  if (limit_bytes.load(std::memory_order_relaxed) == kNoLimit) return;
  live -= static_cast<int64_t>(size);
}

}  // namespace

#ifdef TESSERA_HAS_ALLOCATION_HOOKS

namespace {

const int hooks_installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t size) { CountAllocation(size); },
    [](const volatile void* memory) {
      if (memory != nullptr) {
        CountRelease(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
      }
    });

}  // namespace

#else

// The other forms of the library call these.
void* operator new(size_t size) {
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  CountAllocation(malloc_usable_size(memory));
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  CountRelease(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

#endif

namespace tessera::ckpt::convert {

MemoryMeter::MemoryMeter(int64_t limit) {
  live = 0;
  peak = 0;
  limit_bytes = limit;
}

MemoryMeter::~MemoryMeter() { limit_bytes = kNoLimit; }

int64_t MemoryMeter::peak_bytes() const { return peak; }

}  // namespace tessera::ckpt::convert
