#ifndef TESSERA_CONVERT_CORE_PROGRESS_H_
#define TESSERA_CONVERT_CORE_PROGRESS_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tessera::ckpt::convert {

// A function that is called with the bytes done and in total, by one thread at a time. May be null.
using ProgressFunction = std::function<void(uint64_t done, uint64_t total)>;

// Counts the bytes that several threads process. Thread-safe.
class Progress {
 public:
  // `function` must outlive this object.
  Progress(const ProgressFunction& function, uint64_t total) : function_(function), total_(total) {}

  void Advance(uint64_t bytes) {
    const MutexLock lock(&mutex_);
    done_ += bytes;
    if (function_) function_(done_, total_);
  }

 private:
  const ProgressFunction& function_;
  const uint64_t total_;
  Mutex mutex_;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_PROGRESS_H_
