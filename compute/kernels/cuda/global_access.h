#ifndef TESSERA_COMPUTE_KERNELS_CUDA_GLOBAL_ACCESS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_GLOBAL_ACCESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace tessera::simt {

// Which blocks of one launch touched which global memory.
//
// The blocks of a launch run in no order. So two of them that touch the same bytes race, unless
// both only read them, or both by atomic operations.
//
// The compiler reports the accesses: sources that are compiled with -fsanitize=thread call
// functions for them, which are defined here in place of ThreadSanitizer's. Memory: six times what
// a launch touches.
class GlobalAccess {
 public:
  enum class Kind { kRead, kWrite, kAtomic };

  // A new launch.
  void Reset();
  // Records an access of a block, by its number. Returns false for a race, and appends to `error`
  // what is wrong.
  bool Check(int64_t block, const void* address, int64_t bytes, Kind kind, std::string* error);

 private:
  static constexpr int64_t kCellBytes = 2, kPageBytes = 4096;
  static constexpr size_t kRecentPages = 256;
  // What touched two adjacent bytes: nothing, 0; one block, its number and 1; or several.
  struct Cell {
    uint32_t writer = 0;
    uint32_t reader = 0;
    uint32_t atomic = 0;
  };
  struct Page {
    uintptr_t index = 0;
    uint64_t launch = 0;  // whose accesses these are
    std::array<Cell, kPageBytes / kCellBytes> cells;
  };

  Page& PageAt(uintptr_t index) {
    Page* const recent = recent_[index % kRecentPages];
    if (recent != nullptr && recent->index == index && recent->launch == launch_) return *recent;
    return FindPage(index);
  }
  Page& FindPage(uintptr_t index);

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Page*, kRecentPages> recent_ = {};  // by index
  uint64_t launch_ = 0;
};

namespace internal {

// Checks an access of the thread that runs, if one does, and ends the thread if it is a race.
// Accesses to the thread's stack and to shared memory are left out.
void AccessGlobal(const void* address, int64_t bytes, GlobalAccess::Kind kind);

}  // namespace internal
}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_GLOBAL_ACCESS_H_
