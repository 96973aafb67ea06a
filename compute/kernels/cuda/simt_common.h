#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMT_COMMON_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMT_COMMON_H_

// The declarations that both mappings of simt.h share.

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera::simt {

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;
inline constexpr int kMaxThreads = 1024;

// The number of blocks along each dim.
struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

// Returns whether a grid is within CUDA's limits.
constexpr bool IsWithinLimits(const Grid& grid) {
  constexpr int64_t kEndX = int64_t{1} << 31, kEndYZ = int64_t{1} << 16;
  return grid.x >= 0 && grid.x < kEndX && grid.y >= 0 && grid.y < kEndYZ && grid.z >= 0 &&
         grid.z < kEndYZ;
}

// The alignment with which as few instructions as possible load or store adjacent elements; an
// instruction takes at most 16 bytes.
template <typename T, int kCount>
inline constexpr int kPackAlignment = sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16;

template <typename T, int kCount>
struct alignas(kPackAlignment<T, kCount>) Pack {
  T elements[kCount];
};

// Adjacent elements as memory has them: whole words where they fill some, whose halves would
// otherwise be moved one by one.
template <typename T, int kCount>
struct alignas(kPackAlignment<T, kCount>) Stored {
  using Word = std::conditional_t<sizeof(T) * kCount % 4 == 0, uint32_t, T>;
  Word elements[sizeof(T) * kCount / sizeof(Word)];
};

template <auto kKernel>
constexpr std::string_view PrettyKernelName() {
  return __PRETTY_FUNCTION__;
}

// Addresses [begin, end).
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Describes the launches of the calling thread within its scope, in messages of errors. Scopes
// nest; the innermost counts.
class LaunchScope {
 public:
  LaunchScope();
  virtual ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

  // Returns " in " and the description of the calling thread's scope; empty outside of all scopes.
  static std::string DescribeCurrent();
  // Returns the operands that the calling thread's scope describes, in the description's order.
  static std::vector<Extent> CurrentOperands();

 protected:
  bool is_nested() const { return outer_ != nullptr; }
  virtual std::string Describe() const = 0;
  virtual std::vector<Extent> Operands() const = 0;

 private:
  const LaunchScope* const outer_;
};

// Returns the first error of the calling thread's launches since the last TakeLaunchError(): the
// kernel, its launch, and what is wrong; empty if there was none.
std::string& LaunchError();
std::string TakeLaunchError();
void KeepLaunchError(std::string_view pretty_name, const Grid& grid, int threads,
                     int64_t shared_bytes, const char* error);

std::string ToString(const Grid& grid);

// Returns the name of the function kKernel, without namespaces: "GeluForward<float>".
std::string ShortKernelName(std::string_view pretty_name);

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMT_COMMON_H_
