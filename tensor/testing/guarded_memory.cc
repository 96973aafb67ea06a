#include "tensor/testing/guarded_memory.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/checked_math.h"
#include "base/system_memory.h"

namespace tessera {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

GuardedMemory::GuardedMemory(size_t capacity_bytes)
    : capacity_bytes_(capacity_bytes),
      memory_(static_cast<char*>(MapOnHugePages(capacity_bytes, MAP_NORESERVE))) {
  PCHECK(memory_ != MAP_FAILED);
  PCHECK(mprotect(memory_, capacity_bytes_, PROT_NONE) == 0);
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

// Whole huge pages: small ones, into which these would be split, take 30 times as long.
void GuardedMemory::Protect(int protection) {
  const size_t bytes = std::min(RoundUp(used_bytes_, kHugePageBytes), capacity_bytes_);
  if (bytes > 0) PCHECK(mprotect(memory_, bytes, protection) == 0);
}

}  // namespace tessera
