#ifndef TESSERA_LAYOUT_COVERAGE_H_
#define TESSERA_LAYOUT_COVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/box.h"

namespace tessera {

// The reason why a list of boxes is not a partition of a tensor: one problem, not all of them.
struct CoverageProblem {
  enum class Kind {
    kOutside,  // box `first` is not inside the tensor, or has another number of dims
    kOverlap,  // boxes `first` and `second` (first < second) both hold element `index`
    kGap,      // no box holds element `index`
  };
  Kind kind = Kind::kGap;
  size_t first = 0;
  size_t second = 0;
  std::vector<int64_t> index;
};

// Returns nullopt if every element of the tensor lies in exactly one box, otherwise a problem.
// Empty boxes are allowed. Replicas count as overlaps: remove identical boxes first. Cost: O(n log
// n) for n boxes of a grid, of slabs and of flat ranges; memory O(n).
std::optional<CoverageProblem> FindCoverageProblem(const Shape& global_shape,
                                                   std::span<const Box> boxes);

// Returns "element [3,0] is in no shard" or "element [0,4] is in shards 0 [0:4,0:8] and 2
// [0:2,4:8]".
std::string ToString(const CoverageProblem& problem, std::span<const Box> boxes);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_COVERAGE_H_
