#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_

// What the driver (gemm.cc) takes from the code that is compiled once for each instruction set:
// packing, micro-kernels, and what follows a product. Private to the package.
//
// A panel is a few rows of a, or columns of b, for a part of k. It is packed step by step: at each
// step lie the elements of all its rows, in words of four bytes, in the order in which the chains
// take them. A step is one index of k, and its words fp32 numbers; for bf16 with the processor's
// own instruction (pairs) it is two.

#include <cstdint>

#include "compute/tensor/bfloat16.h"
#include "layout/dtype.h"

namespace tessera::gemm {

// bf16 products are cut into blocks of so many indices of k (see gemm.h).
inline constexpr int64_t kBlock = 32;

// A matrix as the packing sees it: `width` counts rows of a or columns of b.
struct Source {
  const void* first;  // the element of the panel's first row and first k
  int64_t leading;    // from one row to the next, or where rows lie side by side, from one k
  bool k_dense;       // elements along k lie side by side
  int64_t width;      // of the panel
  int64_t available;  // rows of the matrix from the panel's first on
};

// Packs k in [0, depth); from one step of the panel to the next: `stride` words, at least `width`.
// With stride < lanes, words past the panel's end are overwritten, at most kSlack of them.
using PackFunction = void (*)(const Source& source, int64_t depth, int64_t stride, uint32_t* to);
inline constexpr int64_t kSlack = 16;

// to[rows, columns] = from, or zeros without it, continued over `depth` (of bf16: a multiple of
// kBlock). Full width: the tile has as many columns as the panel of b.
using MultiplyFunction = void (*)(int64_t depth, const uint32_t* a, const uint32_t* b,
                                  const float* from, int64_t from_stride, float* to,
                                  int64_t to_stride);

inline constexpr int kMostRows = 14;

struct Kernels {
  int64_t rows, columns;  // of the largest micro-tile
  int64_t k_per_step;     // 1, or 2 for pairs
  PackFunction pack;
  // By rows - 1, and by the width of b's panel: half or all of `columns`.
  MultiplyFunction multiply[kMostRows][2];
};

// fused: multiply-adds round once even where the processor must compute that in several steps.
const Kernels& KernelsFor(DType input, bool fused);

// to[rows, columns] (+ bias) of the output's dtype, from a tile of fp32. bias: of `input`, or null.
void FinishTile(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, DType input,
                const void* bias, DType output, void* to, int64_t to_stride);

}  // namespace tessera::gemm

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_
