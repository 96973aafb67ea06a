#include "checkpoint/plan/box_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

namespace tessera::ckpt {
namespace {

size_t DistinctOffsets(const std::vector<Box>& boxes, size_t dim) {
  std::vector<int64_t> offsets;
  offsets.reserve(boxes.size());
  for (const Box& box : boxes) offsets.push_back(box.global_offset[dim]);
  std::ranges::sort(offsets);
  return std::unique(offsets.begin(), offsets.end()) - offsets.begin();
}

}  // namespace

BoxIndex::BoxIndex(std::vector<Box> boxes) : boxes_(std::move(boxes)), order_(boxes_.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (boxes_.empty()) return;
  has_dims_ = !boxes_[0].shape.empty();
  size_t most = 0;
  for (size_t d = 0; boxes_.size() > 1 && d < boxes_[0].shape.size(); ++d) {
    const size_t distinct = DistinctOffsets(boxes_, d);
    if (distinct > most) {
      most = distinct;
      dim_ = d;
    }
  }
  if (has_dims_) {
    std::ranges::stable_sort(order_, {}, [&](size_t i) { return boxes_[i].global_offset[dim_]; });
  }
  leaves_ = std::bit_ceil(boxes_.size());
  max_end_.assign(2 * leaves_, std::numeric_limits<int64_t>::min());
  for (size_t i = 0; i < order_.size(); ++i) {
    const Box& box = boxes_[order_[i]];
    max_end_[leaves_ + i] = has_dims_ ? box.global_offset[dim_] + box.shape[dim_] : 1;
  }
  for (size_t node = leaves_; node-- > 1;) {
    max_end_[node] = std::max(max_end_[2 * node], max_end_[2 * node + 1]);
  }
}

size_t BoxIndex::CountBefore(int64_t end) const {
  if (!has_dims_) return order_.size();
  return std::ranges::lower_bound(order_, end, {},
                                  [&](size_t i) { return boxes_[i].global_offset[dim_]; }) -
         order_.begin();
}

}  // namespace tessera::ckpt
