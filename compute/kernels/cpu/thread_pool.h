#ifndef TESSERA_COMPUTE_KERNELS_CPU_THREAD_POOL_H_
#define TESSERA_COMPUTE_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera {

// Threads that share the blocks of one loop at a time. A training step is hundreds of loops of well
// under a millisecond. Workers therefore spin for a short while after a loop before they sleep. The
// caller never waits for a worker that is still asleep: it computes the blocks itself.
//
// Which thread computes a block is not determined. Callers define blocks by shape alone and write
// each result in one block, so results do not depend on it.
//
// One loop at a time: a pool belongs to one calling thread, and loops do not nest.
class ThreadPool {
 public:
  // Makes a pool of the caller and threads - 1 workers, or fewer if the system cannot start more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(block, thread) for every block in [0, blocks); thread in [0, threads()) identifies
  // the scratch memory that the body may use during the call. Returns when all blocks are done.
  template <typename Body>
  void ParallelFor(int64_t blocks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    Run(
        blocks,
        [](void* context, int64_t block, int thread) {
          (*static_cast<Plain*>(context))(block, thread);
        },
        &body);
  }

 private:
  using Function = void (*)(void* context, int64_t block, int thread);

  void Run(int64_t blocks, Function function, void* context);
  void WorkerMain(int thread);
  void TakeBlocks(int thread);

  // The body of the current loop. Written only while no worker is inside.
  Function function_ = nullptr;
  void* context_ = nullptr;
  int64_t blocks_ = 0;
  alignas(64) std::atomic<int64_t> next_block_{0};
  // The number of workers inside the loop (low bits), whether more may enter, and the number of the
  // loop, in a single word, so that entering and closing exclude each other.
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<bool> stop_{false};
  bool running_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_THREAD_POOL_H_
