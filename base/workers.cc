#include "base/workers.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace tessera {

absl::Status RunTasks(int workers, size_t count,
                      const std::function<absl::Status(int worker, size_t i)>& task) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  size_t first_failure = count;
  absl::Status error;
  const auto work = [&](int worker) {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      absl::Status status = task(worker, i);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      failed = true;
      if (i < first_failure) {
        first_failure = i;
        error = std::move(status);
      }
    }
  };
  const int threads = static_cast<int>(std::min<size_t>(std::max(workers, 1), count));
  std::vector<std::thread> others = StartThreads(threads - 1, [&](int other) { work(other + 1); });
  work(0);
  for (std::thread& thread : others) thread.join();
  return error;
}

}  // namespace tessera
