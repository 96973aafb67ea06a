// Preloaded into a program to simulate a machine that has no more memory. Counts the allocations of
// all threads but the first one, and the one with the number NO_MEMORY_AFTER fails as operator new
// does. Afterwards there is what the program gives up, and no more for it to hold back.

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace {

constexpr size_t kReserveBytes = size_t{16} << 20;

std::atomic<long> allocations = 0;
std::atomic<bool> is_short = false;

bool Fails() {
  static const char* const after = getenv("NO_MEMORY_AFTER");
  if (after == nullptr || syscall(SYS_gettid) == getpid()) return false;
  return ++allocations == atol(after);
}

}  // namespace

void* operator new(size_t size) {
  if (Fails()) {
    is_short = true;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
  void* const memory = malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

extern "C" void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (is_short && size == kReserveBytes) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, protection, flags, fd, offset));
}
