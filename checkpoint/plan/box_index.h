#ifndef TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_
#define TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/layout/box.h"

namespace tessera::ckpt {

// Finds the boxes of one tensor that overlap a given one without looking at all of them: boxes are sorted along the dim in which
// they differ most, and a query looks only at those whose interval in that dim meets its own.
//
// Cost: O(n log n) to build; a query O(log n + boxes met in that dim), for the slabs, grids and flat ranges that shardings are.
class BoxIndex {
 public:
  // Precondition: all boxes have the same rank.
  explicit BoxIndex(std::vector<Box> boxes);

  const std::vector<Box>& boxes() const { return boxes_; }

  // fn(index of the box, common part), ascending along the sorted dim. Empty boxes overlap nothing.
  template <typename Function>
  void ForEachOverlap(const Box& query, Function&& fn) const {
    const auto [first, last] = Candidates(query);
    for (size_t i = first; i < last; ++i) {
      if (const std::optional<Box> common = Intersect(boxes_[order_[i]], query)) {
        fn(order_[i], *common);
      }
    }
  }

 private:
  // Positions in order_ that can overlap.
  std::pair<size_t, size_t> Candidates(const Box& query) const;

  std::vector<Box> boxes_;
  std::vector<size_t> order_;     // by offset along dim_
  std::vector<int64_t> max_end_;  // of order_[0..i], along dim_; ascending
  size_t dim_ = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_
