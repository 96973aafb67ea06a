#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_TREE_STEPS_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_TREE_STEPS_H_

// Sums of terms that are computed one after the other, in the tree T(0, n) of communicator.h's
// ReduceOp. Only the partial sums that later terms need are kept, each on a level: one for each set
// bit of the number of terms so far, with the largest part of the tree on level 0.

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tessera {

// How to add one term: the last `merges` of the `occupied` levels are added to the term, the last
// first, and the result is stored on level().
struct TreeStep {
  int occupied = 0;
  int merges = 0;

  int level() const { return occupied - merges; }
};

inline TreeStep StepOfTerm(int64_t term, int64_t terms) {
  const uint64_t bits = static_cast<uint64_t>(term);
  const int occupied = std::popcount(bits);
  return {occupied, term == terms - 1 ? occupied : std::countr_one(bits)};
}

// Returns the number of levels of a tree with that many terms.
inline int TreeLevels(int64_t terms) {
  int levels = 1;
  for (int64_t term = 0; term < terms; ++term) {
    levels = std::max(levels, StepOfTerm(term, terms).level() + 1);
  }
  return levels;
}

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_TREE_STEPS_H_
