#include "compute/tensor/guarded_memory.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace tessera {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

GuardedMemory::GuardedMemory(size_t capacity_bytes)
    : capacity_bytes_(capacity_bytes),
      memory_(static_cast<char*>(mmap(nullptr, capacity_bytes, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  PCHECK(memory_ != MAP_FAILED);
}

GuardedMemory::~GuardedMemory() { munmap(memory_, capacity_bytes_); }

char* GuardedMemory::Take(int64_t bytes) {
  // An empty piece has an address of its own, too.
  const size_t rounded = (static_cast<size_t>(bytes) / kPageBytes + 1) * kPageBytes;
  CHECK_LE(rounded, capacity_bytes_ - used_bytes_) << "the test needs more guarded memory";
  char* const taken = memory_ + used_bytes_;
  used_bytes_ += rounded;
  if (depth_ > 0) Protect(PROT_READ | PROT_WRITE);
  return taken;
}

void GuardedMemory::Open() {
  if (depth_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void GuardedMemory::Close() {
  if (--depth_ == 0) Protect(PROT_NONE);
}

void GuardedMemory::Protect(int protection) {
  if (used_bytes_ > 0) PCHECK(mprotect(memory_, used_bytes_, protection) == 0);
}

}  // namespace tessera
