#include "compute/kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/threads.h"

namespace tessera {
namespace {

TEST(ThreadPoolTest, EveryBlockOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t blocks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> visits(blocks);
      std::atomic<bool> known_threads = true;
      pool.ParallelFor(blocks, [&](int64_t block, int thread) {
        ++visits[block];
        if (thread < 0 || thread >= threads) known_threads = false;
      });
      for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
      EXPECT_TRUE(known_threads);
    }
  }
}

// Thousands of short loops: workers that enter late, leave late or sleep must neither miss a block
// nor see the next loop's.
TEST(ThreadPoolTest, ManyShortLoops) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64);
  for (int64_t loop = 1; loop <= 5000; ++loop) {
    const int64_t blocks = 1 + loop % 64;
    pool.ParallelFor(blocks, [&](int64_t block, int) { values[block] = loop; });
    for (int64_t block = 0; block < blocks; ++block) ASSERT_EQ(values[block], loop);
    if (loop % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ThreadPoolTest, ScratchBelongsToOneBlockAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared = false;
  pool.ParallelFor(2000, [&](int64_t, int thread) {
    if (++inside[thread] != 1) shared = true;
    for (int i = 0; i < 100; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    --inside[thread];
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPoolTest, WakesAfterALongRest) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::atomic<int> done = 0;
    pool.ParallelFor(8, [&](int64_t, int) { ++done; });
    EXPECT_EQ(done, 8);
  }
}

TEST(ThreadPoolTest, GoesOnWithFewerThreads) {
  for (const int limit : {0, 1, 2}) {
    LimitThreads(limit);
    ThreadPool pool(4);
    LimitThreads(-1);
    EXPECT_EQ(pool.threads(), limit + 1);
    std::atomic<int64_t> sum = 0;
    pool.ParallelFor(100, [&](int64_t block, int thread) {
      EXPECT_LT(thread, pool.threads());
      sum += block;
    });
    EXPECT_EQ(sum, 4950);
  }
}

}  // namespace
}  // namespace tessera
