#include "tensor/memory.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/checked_math.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/system_memory.h"

namespace tessera {
namespace {

constexpr size_t kPageBytes = 4096;

thread_local MemoryCategory current_category = MemoryCategory::kOther;
thread_local AllocationScope* current_allocations = nullptr;

class Counter {
 public:
  void Add(int64_t bytes) {
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  void ResetPeak() {
    peak_.store(live_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  MemoryUse Use() const {
    return {live_.load(std::memory_order_relaxed), peak_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

struct Counters {
  Counter total;
  std::array<Counter, kMemoryCategoryCount> by_category;

  void Add(MemoryCategory category, int64_t bytes) {
    total.Add(bytes);
    by_category[static_cast<size_t>(category)].Add(bytes);
  }
};

// Returns counters that are never destroyed: a static Tensor may be freed after every other static.
Counters& GlobalCounters() {
  static Counters* const counters = new Counters;
  return *counters;
}

struct DeviceFunctions {
  Mutex mutex;
  std::map<int, DeviceAllocator> by_device ABSL_GUARDED_BY(mutex);
};

DeviceFunctions& GlobalDeviceFunctions() {
  static DeviceFunctions* const functions = new DeviceFunctions;
  return *functions;
}

}  // namespace

MemoryScope::MemoryScope(MemoryCategory category) : previous_(current_category) {
  current_category = category;
}

MemoryScope::~MemoryScope() { current_category = previous_; }

MemoryCategory CurrentMemoryCategory() { return current_category; }

std::string_view MemoryCategoryName(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kOther:
      return "other tensors";
    case MemoryCategory::kWeights:
      return "weights";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer state";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kWorkspace:
      return "workspace";
  }
  LOG(FATAL) << "memory category " << static_cast<int>(category);
}

MemoryUse TensorMemory() { return GlobalCounters().total.Use(); }

MemoryUse TensorMemory(MemoryCategory category) {
  return GlobalCounters().by_category[static_cast<size_t>(category)].Use();
}

void ResetPeakMemory() {
  GlobalCounters().total.ResetPeak();
  for (Counter& counter : GlobalCounters().by_category) counter.ResetPeak();
}

int64_t AvailableHostMemory() {
  constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(kMaxBytes, AvailableMemoryBytes()));
}

std::shared_ptr<void> AllocateHostMemory(int64_t size_bytes) {
  CHECK_GE(size_bytes, 0);
  const size_t rounded = RoundUp<size_t>(std::max<int64_t>(size_bytes, 1), kPageBytes);
  const bool mapped = rounded >= kHugePageBytes;
  // Reserves no swap. Callers check AvailableHostMemory() against all their sizes beforehand, which
  // gives a better message than whichever allocation happens to fail.
  void* data =
      mapped ? MapOnHugePages(rounded, MAP_NORESERVE) : std::aligned_alloc(kPageBytes, rounded);
  if (data == nullptr || data == MAP_FAILED) {
    throw NoMemory(absl::StrCat("cannot allocate ", size_bytes, " bytes for a tensor while ",
                                TensorMemory().live_bytes, " bytes of tensors are live"));
  }
  if (!mapped) std::memset(data, 0, rounded);
  const MemoryCategory category = current_category;
  GlobalCounters().Add(category, size_bytes);
  return std::shared_ptr<void>(data, [=](void* pointer) {
    if (mapped) {
      munmap(pointer, rounded);
    } else {
      std::free(pointer);
    }
    GlobalCounters().Add(category, -size_bytes);
  });
}

AllocationScope::AllocationScope() : previous_(current_allocations) { current_allocations = this; }

absl::Status AllocationScope::End() {
  if (!std::exchange(ended_, true)) current_allocations = previous_;
  return status_;
}

std::shared_ptr<void> AllocateDeviceMemory(int device, int64_t size_bytes) {
  CHECK_GE(size_bytes, 0);
  DeviceAllocator allocate;
  {
    DeviceFunctions& functions = GlobalDeviceFunctions();
    const MutexLock lock(&functions.mutex);
    const auto found = functions.by_device.find(device);
    CHECK(found != functions.by_device.end()) << "GPU " << device << " has not been opened";
    allocate = found->second;
  }
  absl::StatusOr<std::shared_ptr<void>> allocated = allocate(size_bytes);
  if (!allocated.ok()) {
    if (current_allocations == nullptr) throw NoMemory(allocated.status());
    current_allocations->status_.Update(allocated.status());
    return nullptr;
  }
  std::shared_ptr<void> memory = *std::move(allocated);
  const MemoryCategory category = current_category;
  GlobalCounters().Add(category, size_bytes);
  void* const data = memory.get();
  return std::shared_ptr<void>(data, [=, memory = std::move(memory)](void*) mutable {
    memory.reset();
    GlobalCounters().Add(category, -size_bytes);
  });
}

void SetDeviceMemory(int device, DeviceAllocator allocate) {
  DeviceFunctions& functions = GlobalDeviceFunctions();
  const MutexLock lock(&functions.mutex);
  if (allocate == nullptr) {
    functions.by_device.erase(device);
  } else {
    functions.by_device[device] = std::move(allocate);
  }
}

}  // namespace tessera
