// The memory that rewriting takes, counted where it is allocated: on the heap and from the system.

#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/reshard/rewrite.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESSERA_SANITIZER 1  // which counts in the same place
#endif
#endif

namespace {

std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> max_bytes = 0;

#ifndef TESSERA_SANITIZER
void Count(int64_t bytes) {
  const int64_t now = live_bytes.fetch_add(bytes) + bytes;
  int64_t most = max_bytes.load();
  while (now > most && !max_bytes.compare_exchange_weak(most, now)) {
  }
}

void* Allocate(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  Count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

void Free(void* memory) {
  Count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}
#endif

}  // namespace

#ifndef TESSERA_SANITIZER
void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

// Counts I/O buffers. The C library's own calls, for the heap and for stacks of threads, bypass
// this function.
extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  void* const mapped =
      reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
  if (mapped != MAP_FAILED) Count(static_cast<int64_t>(bytes));
  return mapped;
}

extern "C" int munmap(void* address, size_t bytes) noexcept {
  const int result = static_cast<int>(syscall(SYS_munmap, address, bytes));
  if (result == 0) Count(-static_cast<int64_t>(bytes));
  return result;
}
#endif

namespace tessera::ckpt {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(RewriteMemoryTest, StaysWithinItsSetting) {
#ifdef TESSERA_SANITIZER
  GTEST_SKIP() << "the sanitizer has taken the place of the counters (needs: uninstrumented)";
#endif
  const TestFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenPosixStorage(folder.path()));
  std::mt19937_64 random(TestSeed());
  const Shape shape = {3000, 4096};  // 47 MiB
  Manifest metadata;
  metadata.mutable_trainer()->set_step(1);
  SingleProcessGroup group;
  {
    LocalState state;
    state.Add(RandomTensor("w", TensorRole::kWeight, DType::kF32, shape, random), {WholeBox(shape)},
              true);
    ASSERT_OK(SaveNow(*storage,
                      {.step = metadata.trainer().step(), .metadata = ToMetadata(metadata)},
                      state.dict, {.group = &group}, {.choose_root = In("from")}));
  }
  // Columns over four ranks: every rank needs a part of every row.
  std::vector<std::string> ranks;
  for (int64_t r = 0; r < 4; ++r) {
    StateDict state;
    ShardedTensor& tensor = state.tensors.emplace_back();
    tensor.name = "w";
    tensor.dtype = DType::kF32;
    tensor.global_shape = shape;
    tensor.shards.push_back({{{0, 1024 * r}, {3000, 1024}}, nullptr, {}});
    ranks.push_back(DescribeState(state).SerializeAsString());
  }
  ASSERT_OK_AND_ASSIGN(const auto plan, PlanSave(ranks, {}));
  ASSERT_OK_AND_ASSIGN(const auto saved, Checkpoint::Open(*storage, "from/step-00000001"));

  constexpr uint64_t kMemory = 16 * kMiB;
  const int64_t before = live_bytes.load();
  max_bytes = before;
  const auto report = Rewrite(saved, {ranks, plan}, *storage, "to", metadata,
                              {.memory_bytes = kMemory, .io_threads = 4});
  const int64_t most = max_bytes.load() - before;
  ASSERT_OK(report);
  EXPECT_LE(report->buffer_bytes, kMemory);
  EXPECT_GT(most, static_cast<int64_t>(kMemory / 2));  // the counters work
  // The plan, file handles and messages need a little more.
  EXPECT_LE(most, static_cast<int64_t>(kMemory + kMiB));
  // Ranks in parallel: what several need is read once, except for the chunks at the boundaries.
  EXPECT_LE(report->bytes_read, report->bytes_written * 3 / 2);
}

}  // namespace
}  // namespace tessera::ckpt
