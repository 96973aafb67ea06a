#include "checkpoint/plan/box_index.h"

#include <numeric>

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
  if (boxes_.empty() || boxes_[0].shape.empty()) return;
  size_t most = 0;
  for (size_t d = 0; boxes_.size() > 1 && d < boxes_[0].shape.size(); ++d) {
    const size_t distinct = DistinctOffsets(boxes_, d);
    if (distinct > most) {
      most = distinct;
      dim_ = d;
    }
  }
  std::ranges::stable_sort(order_, {}, [&](size_t i) { return boxes_[i].global_offset[dim_]; });
  int64_t max_end = 0;
  for (size_t i : order_) {
    max_end = std::max(max_end, boxes_[i].global_offset[dim_] + boxes_[i].shape[dim_]);
    max_end_.push_back(max_end);
  }
}

std::pair<size_t, size_t> BoxIndex::Candidates(const Box& query) const {
  if (max_end_.empty()) return {0, order_.size()};
  const int64_t begin = query.global_offset[dim_], end = begin + query.shape[dim_];
  const size_t first = std::ranges::upper_bound(max_end_, begin) - max_end_.begin();
  const size_t last =
      std::ranges::lower_bound(order_, end, {},
                               [&](size_t i) { return boxes_[i].global_offset[dim_]; }) -
      order_.begin();
  return {first, std::max(first, last)};
}

}  // namespace tessera::ckpt
