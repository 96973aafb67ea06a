#include "trainer/app/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

#include "base/no_memory.h"

namespace tessera {
namespace {

constexpr size_t kReserveBytes = size_t{16} << 20;

std::atomic<void*> reserve = nullptr;
std::atomic<int> releases = 0;
std::atomic<bool> is_in_use = false;

bool Reserve() {
  void* const memory =
      mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Two threads may have come here at once.
  if (void* const other = reserve.exchange(memory); other != nullptr) munmap(other, kReserveBytes);
  return true;
}

// Operator new calls this and tries again once it returns: once for each release, on any thread.
void OnNoMemory() {
  thread_local int last_release = 0;
  if (void* const memory = reserve.exchange(nullptr); memory != nullptr) {
    munmap(memory, kReserveBytes);
    is_in_use = true;
    ++releases;
  }
  const int release = releases;
  if (release == last_release) throw std::bad_alloc();
  last_release = release;
}

}  // namespace

void HoldMemoryBack() {
  if (Reserve()) std::set_new_handler(OnNoMemory);
}

absl::Status CheckMemory(std::string_view action) {
  if (!is_in_use) return absl::OkStatus();
  if (!Reserve()) return NoMemoryStatus(std::bad_alloc(), action);
  is_in_use = false;
  return absl::OkStatus();
}

}  // namespace tessera
