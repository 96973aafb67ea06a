#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_MEMORY_ACCESS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_MEMORY_ACCESS_H_

// Detection of races in simulated kernels: between the threads of a block on shared memory, and
// between blocks on global memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compute/kernels/cuda/simt_common.h"

namespace tessera::simt {

inline constexpr int64_t kCellBytes = 2;  // that are recorded together

// The shared memory of one simulated block, and which threads touched it since which barrier.
//
// A race is an access by one thread to memory that another wrote, or a write to memory that another
// read, with no barrier of the block, or of the warp of both, in between. No thread may touch
// memory that is being copied asynchronously; once the copying thread has waited, it counts as the
// writer.
class SharedAccess {
 public:
  // Begins a new block: memory is all ones, which is NaN in every floating type. What the last
  // block has recorded is of earlier epochs.
  void Reset(int64_t bytes, int threads);
  // Forgets a block that an error has ended, amid copies and products.
  void Abandon() { cells_.clear(); }
  // A thread's use of memory; kReadByWarp: any lane of its warp may be the reader.
  enum class Use { kRead, kReadByWarp, kWrite, kCopy };
  void SyncBlock() {
    ++block_epoch_;
    published_ = fences_;
  }
  void SyncWarp(int warp) { ++warp_epochs_[warp]; }

  // Records an access. Returns what is wrong with it, or null if nothing is. Precondition: `begin`
  // and `bytes` are even, and within bounds.
  const char* Check(int thread, int64_t begin, int64_t bytes, Use use);
  // Adds a copy of 16 bytes, zeros if `from` is null, which the thread's FinishCopies() makes.
  // Called after a Check() for kCopy.
  void CopyPack(int thread, char* to, const void* from) { copies_[thread].push_back({to, from}); }
  void FinishCopies(int thread);
  // Lets products read what the thread has written, after the next barrier.
  void FenceProxy(int thread) { ++fences_[thread]; }
  // Record that a product of the thread's warp begins to read memory, and that it has read it. In
  // between, nothing may write there; after that, any lane of the warp may have read it.
  const char* BeginProductRead(int thread, int64_t begin, int64_t bytes);
  const char* EndProductRead(int thread, int64_t begin, int64_t bytes);
  bool IsCopying(int thread) const { return !copies_[thread].empty(); }

  char* data() { return memory_.data(); }
  const char* data() const { return memory_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  // The last accesses to two adjacent bytes.
  struct Cell {
    uint32_t write_epoch = 0;
    uint32_t write_warp_epoch = 0;
    uint32_t read_epoch = 0;
    uint32_t read_warp_epoch = 0;
    uint32_t write_fence = 0;  // the number of the writer's fences before
    int32_t products = 0;      // that read
    int16_t writer = 0;
    int16_t reader = 0;          // the last one
    bool copying = false;        // by the writer
    bool warp_readers = false;   // others of the reader's warp, too, since the warp's barrier
    bool block_readers = false;  // readers of several warps, since the block's barrier
  };

  bool Ordered(int thread, int other, uint32_t block_epoch, uint32_t warp_epoch) const;
  // Checks and records an access. It is apart from what most reads need.
  [[gnu::noinline]] const char* Record(int thread, std::span<Cell> cells, Use use) const;
  bool AddsNothing(const Cell& cell, int thread, uint32_t warp_epoch) const;
  const char* CheckRead(Cell& cell, int thread) const;
  const char* CheckWrite(Cell& cell, int thread) const;
  void SetWritten(Cell& cell, int thread, bool copying) const;

  struct Copy {
    char* to;
    const void* from;
  };

  std::vector<char> memory_;
  std::vector<Cell> cells_;
  // The number of barriers and blocks so far, and the number where this block has begun.
  uint32_t block_epoch_ = 0, first_epoch_ = 0;
  std::vector<uint32_t> warp_epochs_;
  // The number of fences of each thread, and as of the block's last barrier.
  std::vector<uint32_t> fences_, published_;
  std::vector<std::vector<Copy>> copies_;  // of each thread
};

// A record of which blocks of one launch touched which global memory.
//
// The blocks of a launch run in no order. So two of them that touch the same bytes race, unless
// both only read them, or both by atomic operations.
//
// An access to memory that is not the device's is an error, too.
//
// The compiler reports the accesses: sources that are compiled with -fsanitize=thread call
// functions for them, which are defined here in place of ThreadSanitizer's. Memory: six times what
// a launch touches.
class GlobalAccess {
 public:
  enum class Kind { kRead, kWrite, kAtomic };

  // Returns the piece of the device's memory that has an address, or an empty piece.
  using FindMemory = std::function<Extent(const void*)>;

  // Begins a new launch. Without `find_memory`, all memory is the device's.
  void Reset(FindMemory find_memory = nullptr);
  // Records an access of a block, by its number. For an error, appends a description to `error` and
  // returns false.
  bool Check(int64_t block, const void* address, int64_t bytes, Kind kind, std::string* error);

 private:
  static constexpr int64_t kPageBytes = 4096;
  static constexpr size_t kRecentPages = 256;
  // The blocks that touched two adjacent bytes: 0 for none, a block's number and 1 for one, or
  // several.
  struct Cell {
    uint32_t writer = 0;
    uint32_t reader = 0;
    uint32_t atomic = 0;
  };
  struct Page {
    uintptr_t index = 0;
    uint64_t launch = 0;  // whose accesses these are
    Extent memory;        // the piece that has the first of them
    std::array<Cell, kPageBytes / kCellBytes> cells;
  };

  Page& PageAt(uintptr_t at) {
    const uintptr_t index = at / kPageBytes;
    Page* const recent = recent_[index % kRecentPages];
    if (recent != nullptr && recent->index == index && recent->launch == launch_) return *recent;
    return FindPage(at);
  }
  Page& FindPage(uintptr_t at);

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Page*, kRecentPages> recent_ = {};  // by index
  uint64_t launch_ = 0;
  FindMemory find_memory_;
};

namespace internal {

// Memory whose accesses are not checked: the stack of the thread of a block that runs, which most
// reported accesses are to; all memory while none runs.
extern constinit thread_local Extent unchecked;

// Checks an access outside of `unchecked`, as AccessGlobal() does.
void CheckGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind);

// Checks an access of the running thread, if there is one, and ends the thread on a race. Ignores
// accesses to the thread's stack and to shared memory.
inline void AccessGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - unchecked.begin;
  if (offset >= unchecked.end - unchecked.begin) CheckGlobal(address, bytes, kind);
}

}  // namespace internal
}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_MEMORY_ACCESS_H_
