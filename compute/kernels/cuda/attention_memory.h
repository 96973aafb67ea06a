#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_

// The shared memory of attention's kernels, which decides where they can run.
//
// A block of four warps owns 64 positions of one head, 16 per warp, and iterates over the other
// side (keys, or queries) in tiles of 32. Heads are padded with zeros in shared memory to 32, 64 or
// 128.

#include <cstdint>

#include "layout/dtype.h"

namespace tessera::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kOwnRows = 64;
inline constexpr int kOtherRows = 32;
inline constexpr int kMaxHeadSize = 128;
// Rows in shared memory are 16 or 32 bytes longer, so that a warp's reads spread over the banks.
inline constexpr int kRowPadding = 8;
inline constexpr int kScoreStride = kOtherRows + kRowPadding;

constexpr int64_t HeadTileElements(int64_t padded_head, int64_t rows) {
  return rows * (padded_head + kRowPadding);
}
inline constexpr int64_t kScoreElements = int64_t{kOwnRows} * kScoreStride;

// Elements of q's dtype in the shared memory of a block: of the forward kernel, and of the two
// backward ones.
constexpr int64_t ForwardElements(int64_t padded_head) {
  return HeadTileElements(padded_head, kOwnRows) + 2 * HeadTileElements(padded_head, kOtherRows) +
         kScoreElements;
}
constexpr int64_t BackwardQueriesElements(int64_t padded_head) {
  return 2 * HeadTileElements(padded_head, kOwnRows) +
         2 * HeadTileElements(padded_head, kOtherRows) + kScoreElements;
}
constexpr int64_t BackwardKeysElements(int64_t padded_head) {
  return BackwardQueriesElements(padded_head) + kScoreElements;
}

// The most that a block of any of attention's kernels takes, in bytes, for heads of this size.
constexpr int64_t AttentionSharedBytes(DType dtype, int64_t head_size, bool backward) {
  const int64_t padded = head_size <= 32 ? 32 : head_size <= 64 ? 64 : kMaxHeadSize;
  return (backward ? BackwardKeysElements(padded) : ForwardElements(padded)) * ElementSize(dtype);
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_MEMORY_H_
