#include "base/threads.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>

#include "base/fail_allocation.h"
#include "base/no_memory.h"
#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class ThreadsTest : public testing::Test {
 protected:
  void TearDown() override { LimitThreads(-1); }
};

TEST_F(ThreadsTest, StartsAsManyAsThereAre) {
  for (const int limit : {-1, 0, 1, 3, 4, 9}) {
    LimitThreads(limit);
    std::atomic<int> sum = 0;
    std::vector<std::thread> threads = StartThreads(4, [&](int i) { sum += 1 << i; });
    for (std::thread& thread : threads) thread.join();
    const int started = limit < 0 || limit > 4 ? 4 : limit;
    EXPECT_EQ(threads.size(), started) << limit;
    EXPECT_EQ(sum, (1 << started) - 1) << limit;
  }
  LimitThreads(-1);
  EXPECT_TRUE(StartThreads(0, nullptr).empty());
  EXPECT_TRUE(StartThreads(-1, nullptr).empty());
}

TEST_F(ThreadsTest, AThreadThatCannotBeStartedIsAnError) {
  LimitThreads(1);
  ASSERT_OK_AND_ASSIGN(auto first, StartThread([] {}));
  first.join();
  const auto second = StartThread([] {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(second.status().message()).find("pids.max"), std::string::npos);
}

// Sanitizers allocate memory for each thread, and abort without it.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESSERA_SANITIZED 1
#endif
#endif

#ifndef TESSERA_SANITIZED
// The system's own error, in a process without space for more stacks.
TEST_F(ThreadsTest, ALimitOfTheSystem) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * sysconf(_SC_PAGESIZE) + (rlim_t{64} << 20);
    const rlimit limit = {bytes, bytes};
    if (pages == 0 || setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const std::vector<std::thread> threads = StartThreads(1000, [](int) { pause(); });
    if (threads.size() >= 1000) _exit(3);
    if (StartThread([] {}).status().code() != absl::StatusCode::kResourceExhausted) _exit(4);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

// Every thread that was started is in the result, wherever memory ends.
TEST_F(ThreadsTest, StartsAsManyAsThereIsMemoryFor) {
  bool happened = true;
  size_t fewest = 4;
  for (int64_t allocation = 0; happened; ++allocation) {
    std::atomic<int> ran = 0;
    const std::function<void(int)> body = [&](int) { ++ran; };
    std::vector<std::thread> threads;
    {
      const FailAllocation fail(allocation);
      threads = StartThreads(4, body);
      happened = fail.happened();
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ran, threads.size());
    EXPECT_EQ(threads.size() < 4, happened);
    fewest = std::min(fewest, threads.size());
  }
  EXPECT_EQ(fewest, 0);
}

TEST_F(ThreadsTest, MissingMemoryIsAStatusEvenWithoutMemoryForItsMessage) {
  absl::Status status;
  {
    const FailAllocation fail(0, /*and_later=*/true);
    status = StartThread([] {}).status();
  }
  EXPECT_EQ(status, absl::Status(absl::StatusCode::kResourceExhausted, ""));
}

TEST_F(ThreadsTest, AnExceptionIsAStatusEvenWithoutMemoryForItsMessage) {
  const std::runtime_error error("mine");
  absl::Status status;
  {
    const FailAllocation fail(0, /*and_later=*/true);
    status = ExceptionStatus(error, "go on");
  }
  EXPECT_EQ(status, absl::Status(absl::StatusCode::kResourceExhausted, ""));
}

TEST_F(ThreadsTest, MissingMemoryIsATasksError) {
  for (const int workers : {1, 3}) {
    const absl::Status status = RunTasks(workers, 8, [](int, size_t i) -> absl::Status {
      if (i >= 4) throw std::bad_alloc();
      return absl::OkStatus();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

// There is nobody to whom such a thread could report.
TEST_F(ThreadsTest, AThreadWithoutMemoryEndsTheProcessWithASentence) {
  EXPECT_EXIT(
      {
        auto thread = StartThread([] { throw std::bad_alloc(); });
        if (thread.ok()) thread->join();
      },
      testing::ExitedWithCode(1), "^not enough memory to continue in a thread: ");
}

}  // namespace
}  // namespace tessera
