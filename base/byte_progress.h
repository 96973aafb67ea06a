#ifndef TESSERA_BASE_BYTE_PROGRESS_H_
#define TESSERA_BASE_BYTE_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tessera {

// Counts the bytes that several threads have processed, and calls a function with the count and the
// total, from one thread at a time. Thread-safe.
class ByteProgress {
 public:
  using Function = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  // If `function` is null, nothing is counted.
  ByteProgress(Function function, uint64_t total_bytes)
      : function_(std::move(function)), total_bytes_(total_bytes) {}

  void Add(uint64_t bytes) {
    if (!function_) return;
    const MutexLock lock(&mutex_);
    done_bytes_ += bytes;
    function_(done_bytes_, total_bytes_);
  }

 private:
  const Function function_;
  const uint64_t total_bytes_;
  Mutex mutex_;
  uint64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_BYTE_PROGRESS_H_
