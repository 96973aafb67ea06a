#include "base/fail_allocation.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace tessera {
namespace {

thread_local bool counts_this_thread = false;
std::atomic<int64_t> arrived = 0, first_failure = 0, last_failure = 0;

bool Fails() {
  if (!counts_this_thread) return false;
  const int64_t number = arrived++;
  return first_failure <= number && number <= last_failure;
}

}  // namespace

FailAllocation::FailAllocation(int64_t number, bool and_later) {
  arrived = 0;
  first_failure = number;
  last_failure = and_later ? std::numeric_limits<int64_t>::max() : number;
  counts_this_thread = true;
}

FailAllocation::~FailAllocation() { counts_this_thread = false; }

int64_t FailAllocation::count() const { return arrived; }

bool FailAllocation::happened() const { return arrived > first_failure; }

}  // namespace tessera

// The other forms of the library call these.
void* operator new(size_t size) {
  void* const memory = tessera::Fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
