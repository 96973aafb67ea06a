#include "tensor/testing/guarded_memory.h"

#include <glog/logging.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/checked_math.h"
#include "base/system_memory.h"

namespace tessera {
namespace {

constexpr size_t kPageBytes = 4096;

// The memories of the process, for the handler of a signal.
struct GuardedRange {
  std::atomic<char*> begin = nullptr;  // null: free
  std::atomic<size_t> bytes = 0;
};
std::array<GuardedRange, 64> guarded_ranges;
struct sigaction former_action;

// Says what has happened; the access, made again, then meets the former handler.
void ExplainFault(int number, siginfo_t* info, void* /*context*/) {
  const char* const at = static_cast<const char*>(info->si_addr);
  for (const GuardedRange& range : guarded_ranges) {
    const char* const begin = range.begin;
    if (begin == nullptr || at < begin || at >= begin + range.bytes) continue;
    constexpr char kMessage[] = "host code touches memory of a device\n";
    if (write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1) < 0) break;
  }
  sigaction(number, &former_action, nullptr);
}

void Register(char* begin, size_t bytes) {
  static const int installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = ExplainFault;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSEGV, &action, &former_action);
  }();
  PCHECK(installed == 0);
  for (GuardedRange& range : guarded_ranges) {
    char* none = nullptr;
    if (!range.begin.compare_exchange_strong(none, begin)) continue;
    range.bytes = bytes;
    return;
  }
}

void Unregister(const char* begin) {
  for (GuardedRange& range : guarded_ranges) {
    if (range.begin == begin) range.begin = nullptr;
  }
}

char* Reserve(size_t bytes) {
  void* const memory = MapOnHugePages(bytes, MAP_NORESERVE);
  PCHECK(memory != MAP_FAILED);
  PCHECK(mprotect(memory, bytes, PROT_NONE) == 0);
  Register(static_cast<char*>(memory), bytes);
  return static_cast<char*>(memory);
}

}  // namespace

GuardedMemory::GuardedMemory(size_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), memory_(nullptr) {}

GuardedMemory::~GuardedMemory() {
  if (memory_ == nullptr) return;
  Unregister(memory_);
  munmap(memory_, capacity_bytes_);
}

char* GuardedMemory::Take(int64_t bytes) {
  // An empty piece has an address of its own, too.
  const size_t rounded = (static_cast<size_t>(bytes) / kPageBytes + 1) * kPageBytes;
  CHECK_LE(rounded, capacity_bytes_ - used_bytes_) << "the test needs more guarded memory";
  // Not before: an emulator keeps a record of every page that was ever mapped.
  if (memory_ == nullptr) memory_ = Reserve(capacity_bytes_);
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
