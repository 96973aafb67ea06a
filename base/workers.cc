#include "base/workers.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/threads.h"

namespace tessera {
namespace {

// The error of the first task, by index, that failed.
class FirstFailure {
 public:
  void Add(size_t i, absl::Status error) {
    const MutexLock lock(&mutex_);
    if (!error_.ok() && i >= index_) return;
    index_ = i;
    error_ = std::move(error);
  }
  absl::Status error() const {
    const MutexLock lock(&mutex_);
    return error_;
  }

 private:
  mutable Mutex mutex_;
  size_t index_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status RunTasks(int workers, size_t count,
                      const std::function<absl::Status(int worker, size_t i)>& task) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  FirstFailure first_failure;
  const auto work = [&](int worker) {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      absl::Status status = task(worker, i);
      if (status.ok()) continue;
      failed = true;
      first_failure.Add(i, std::move(status));
    }
  };
  const int threads = static_cast<int>(std::min<size_t>(std::max(workers, 1), count));
  std::vector<std::thread> others = StartThreads(threads - 1, [&](int other) { work(other + 1); });
  work(0);
  for (std::thread& thread : others) thread.join();
  return first_failure.error();
}

}  // namespace tessera
