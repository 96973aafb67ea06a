#include "base/threads.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::atomic<int> threads_left = -1;

bool TakeThread() {
  int left = threads_left.load();
  while (left > 0 && !threads_left.compare_exchange_weak(left, left - 1)) {
  }
  return left != 0;
}

absl::Status NoThread(const std::string& reason) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot start a thread (", reason,
      "): raise the limit on processes (ulimit -u, or pids.max of the control group)"));
}

// Ends the process because a thread cannot report its error to a caller.
[[noreturn]] void EndProcess(const std::bad_alloc& error) {
  constexpr std::chrono::seconds kLastMessageTime(5);
  const std::string message(NoMemoryStatus(error, "continue in a thread").message());
  WriteBounded(STDERR_FILENO, message + "\n", kLastMessageTime);
  _exit(1);
}

}  // namespace

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  return CatchExceptions("start a thread", [&]() -> absl::StatusOr<std::thread> {
    if (!TakeThread()) return NoThread(std::generic_category().message(EAGAIN));
    try {
      return std::thread([body = std::move(body)] {
        try {
          body();
        } catch (const std::bad_alloc& error) {
          EndProcess(error);
        }
      });
    } catch (const std::system_error& error) {
      return NoThread(error.code().message());
    }
  });
}

std::vector<std::thread> StartThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  if (count <= 0) return threads;
  CatchExceptions("",
                  [&] {  // also to copy `body`
                    threads.reserve(count);
                    for (int i = 0; i < count; ++i) {
                      TESSERA_ASSIGN_OR_RETURN(std::thread thread,
                                               StartThread([body, i] { body(i); }));
                      threads.push_back(std::move(thread));
                    }
                    return absl::OkStatus();
                  })
      .IgnoreError();
  return threads;
}

void LimitThreads(int left) { threads_left.store(left); }

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
      absl::Status status = CatchExceptions("", [&] { return task(worker, i); });
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

void LowerThreadPriority(int nice) {
  // On Linux this applies to the calling thread only, despite the name.
  const id_t thread = static_cast<id_t>(syscall(SYS_gettid));
  errno = 0;
  const int current = getpriority(PRIO_PROCESS, thread);
  if (nice > 0 && errno == 0) setpriority(PRIO_PROCESS, thread, current + nice);
}

double ThreadProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace tessera
