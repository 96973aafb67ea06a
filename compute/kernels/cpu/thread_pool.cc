#include "compute/kernels/cpu/thread_pool.h"

#include <glog/logging.h>

#include <chrono>

#include "base/threads.h"

// From libgomp, with which the system's oneDNN is built. Declared here because clang's omp.h is of
// another runtime.
extern "C" void omp_set_num_threads(int threads);

namespace tessera {
namespace {

constexpr uint32_t kInsideMask = 0xff;
constexpr uint32_t kOpen = 0x100;
constexpr uint32_t kOneLoop = 0x200;
constexpr int kMaxThreads = 128;

// Long enough to bridge the serial code between two loops of a step, short enough not to warm an
// idle machine.
constexpr std::chrono::microseconds kSpin{200};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Inside a block oneDNN must stay on the calling thread: its results for long sums depend on the
// thread count.
void KeepLibrariesOnThisThread() {
  static thread_local bool done = false;
  if (done) return;
  omp_set_num_threads(1);
  done = true;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1 && threads <= kMaxThreads) << threads;
  workers_ = StartThreads(threads - 1, [this](int other) { WorkerMain(other + 1); });
  LOG_IF(WARNING, this->threads() < threads)
      << "computing with " << this->threads() << " of " << threads
      << " threads: the system gives no more (ulimit -u, or pids.max of the control group)";
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  state_.fetch_add(kOneLoop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t blocks, Function function, void* context) {
  CHECK(!running_) << "loops of one pool do not nest";
  KeepLibrariesOnThisThread();
  if (workers_.empty() || blocks <= 1) {
    for (int64_t block = 0; block < blocks; ++block) function(context, block, 0);
    return;
  }
  running_ = true;
  function_ = function;
  context_ = context;
  blocks_ = blocks;
  next_block_.store(0, std::memory_order_relaxed);
  state_.fetch_add(kOneLoop | kOpen);
  state_.notify_all();
  TakeBlocks(0);
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & kInsideMask) != 0; ++spins) {
    // With more threads than processors, the worker may need this thread's processor to finish.
    if (spins < 2000) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  running_ = false;
}

void ThreadPool::TakeBlocks(int thread) {
  const int64_t blocks = blocks_;
  for (;;) {
    const int64_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (block >= blocks) return;
    function_(context_, block, thread);
  }
}

void ThreadPool::WorkerMain(int thread) {
  KeepLibrariesOnThisThread();
  using Clock = std::chrono::steady_clock;
  uint32_t served = ~uint32_t{0};
  Clock::time_point idle_since = Clock::now();
  for (int spins = 0;; ++spins) {
    uint32_t state = state_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    const uint32_t loop = state & ~(kInsideMask | kOpen);
    if ((state & kOpen) != 0 && loop != served) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      TakeBlocks(thread);
      state_.fetch_sub(1, std::memory_order_release);
      served = loop;
      idle_since = Clock::now();
      continue;
    }
    Pause();
    if (spins % 64 == 0 && Clock::now() - idle_since > kSpin) state_.wait(state);
  }
}

}  // namespace tessera
