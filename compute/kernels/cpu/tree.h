#ifndef TESSERA_COMPUTE_KERNELS_CPU_TREE_H_
#define TESSERA_COMPUTE_KERNELS_CPU_TREE_H_

// Tiles of a sum in a tree (gemm/tree_steps.h).

#include <cstdint>

#include "compute/kernels/cpu/gemm/tree_steps.h"

namespace tessera {

// Addresses of the tiles of the levels: level 0 in the result, the others in scratch memory.
struct TreeTiles {
  float* result = nullptr;
  int64_t result_stride = 0;
  float* scratch = nullptr;  // level 1
  int64_t scratch_stride = 0;
  int64_t level_elements = 0;  // from one level in scratch to the next

  float* level(int level) const {
    return level == 0 ? result : scratch + (level - 1) * level_elements;
  }
  int64_t stride(int level) const { return level == 0 ? result_stride : scratch_stride; }
};

// Adds a term of [rows, columns] as `step` describes.
void AddTerm(const TreeStep& step, const float* term, int64_t term_stride, int64_t rows,
             int64_t columns, const TreeTiles& tiles);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_TREE_H_
