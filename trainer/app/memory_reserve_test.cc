#include "trainer/app/memory_reserve.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// In a process of its own, whose memory is limited to what it has.
int WithLittleMemory(int (*work)()) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    HoldMemoryBack();
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * sysconf(_SC_PAGESIZE);
    const rlimit limit = {bytes, bytes};
    if (pages == 0 || setrlimit(RLIMIT_AS, &limit) != 0) _exit(101);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

constexpr size_t kBlockBytes = size_t{1} << 20;

TEST(MemoryReserveTest, TheAllocationThatFailsSucceedsAndTheNextCheckDoesNot) {
  EXPECT_EQ(CheckMemory("train"), absl::OkStatus());
  // A sanitizer's allocator reserves memory of its own.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the allocator is a sanitizer's";
#endif
#endif
  const int code = WithLittleMemory([] {
    if (!CheckMemory("train").ok()) return 1;
    std::vector<std::unique_ptr<std::byte[]>> blocks;
    blocks.reserve(100);
    while (CheckMemory("train").ok()) {
      if (blocks.size() == 100) return 2;  // there was no limit
      blocks.push_back(std::make_unique<std::byte[]>(kBlockBytes));
    }
    const absl::Status status = CheckMemory("train");
    if (!absl::IsResourceExhausted(status)) return 3;
    if (std::string(status.message()).find("not enough memory to train: ") != 0) return 4;
    // The rest of the reserve lasts for a while, but not for ever.
    int more = 0;
    try {
      for (; more < 100; ++more) blocks.push_back(std::make_unique<std::byte[]>(kBlockBytes));
    } catch (const std::bad_alloc&) {
    }
    return more >= 5 && more < 100 ? 7 : 5;
  });
  EXPECT_EQ(code, 7);
}

}  // namespace
}  // namespace tessera
