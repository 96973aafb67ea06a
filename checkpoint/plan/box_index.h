#ifndef TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_
#define TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "layout/box.h"

namespace tessera::ckpt {

// Finds the boxes of one tensor that overlap a given one without examining all of them. Boxes are
// sorted along the dim in which they differ most, under a tree of the largest end in each half. A
// query examines only boxes whose interval in that dim overlaps its own.
//
// Cost: O(n log n) to build; a query O(log n) for each box that overlaps in that dim. Slabs, grids
// and flat ranges, the usual shardings, have few of these.
class BoxIndex {
 public:
  // Precondition: all boxes have the same number of dims.
  explicit BoxIndex(std::vector<Box> boxes);

  const std::vector<Box>& boxes() const { return boxes_; }

  // Calls fn(index of the box, intersection), ascending along the sorted dim. Empty boxes overlap
  // nothing.
  template <typename Function>
  void ForEachOverlap(const Box& query, Function&& fn) const {
    if (boxes_.empty()) return;
    // A scalar has no dim to sort by.
    const int64_t begin = has_dims_ ? query.global_offset[dim_] : 0;
    const int64_t end = has_dims_ ? begin + query.shape[dim_] : 1;
    Visit(1, 0, leaves_, CountBefore(end), begin, [&](size_t position) {
      if (const std::optional<Box> common = Intersect(boxes_[order_[position]], query)) {
        fn(order_[position], *common);
      }
    });
  }

 private:
  // Returns the number of boxes that begin before `end`, which are at the first positions of
  // order_.
  size_t CountBefore(int64_t end) const;

  // Calls fn(position) for positions below `count` in [first, first + width) whose box ends after
  // `begin`. `node` is the tree's node over that range.
  template <typename Function>
  void Visit(size_t node, size_t first, size_t width, size_t count, int64_t begin,
             const Function& fn) const {
    if (first >= count || max_end_[node] <= begin) return;
    if (width == 1) {
      fn(first);
      return;
    }
    Visit(2 * node, first, width / 2, count, begin, fn);
    Visit(2 * node + 1, first + width / 2, width / 2, count, begin, fn);
  }

  std::vector<Box> boxes_;
  std::vector<size_t> order_;  // by offset along dim_
  std::vector<int64_t>
      max_end_;        // over the boxes under each node; node i has children 2i and 2i + 1
  size_t leaves_ = 1;  // a power of two
  size_t dim_ = 0;
  bool has_dims_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_BOX_INDEX_H_
