#include "layout/coverage.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

// Splits the tensor recursively until each region lies in exactly one box. A region that no box
// fills entirely has a box boundary inside it; splitting at the median of those boundaries halves
// their number, so that the depth is logarithmic.
//
// The current region is changed in place and the boxes that intersect it are on one stack, so that
// a node needs no allocation.
class PartitionCheck {
 public:
  PartitionCheck(const Shape& global_shape, std::span<const Box> boxes)
      : dims_(global_shape.size()) {
    for (const int64_t extent : global_shape) region_.push_back({0, extent});
    bounds_.reserve(boxes.size() * dims_);
    stack_.reserve(2 * boxes.size());
    for (size_t i = 0; i < boxes.size(); ++i) {
      for (size_t d = 0; d < dims_; ++d) {
        const int64_t begin = boxes[i].global_offset[d];
        bounds_.push_back({begin, begin + boxes[i].shape[d]});
      }
      if (!boxes[i].empty()) stack_.push_back(i);
    }
  }

  std::optional<CoverageProblem> Check() { return Check(0); }

 private:
  struct Interval {
    int64_t begin;
    int64_t end;
  };

  const Interval* BoundsOf(size_t box) const { return bounds_.data() + box * dims_; }

  // The boxes from stack_[first] on, ascending, are those that intersect the region. Leaves them
  // there.
  std::optional<CoverageProblem> Check(size_t first) {
    const size_t last = stack_.size();
    if (first == last) return CoverageProblem{CoverageProblem::Kind::kGap, 0, 0, Corner(nullptr)};
    for (size_t at = first; at < last; ++at) {
      if (!FillsRegion(stack_[at])) continue;
      if (last - first == 1) return std::nullopt;
      const size_t other = stack_[at == first ? first + 1 : first];
      return CoverageProblem{CoverageProblem::Kind::kOverlap, std::min(stack_[at], other),
                             std::max(stack_[at], other), Corner(BoundsOf(other))};
    }
    const auto [dim, at] = ChooseSplit(first);
    const Interval whole = region_[dim];
    for (const Interval half : {Interval{whole.begin, at}, Interval{at, whole.end}}) {
      region_[dim] = half;
      for (size_t i = first; i < last; ++i) {
        const Interval& box = BoundsOf(stack_[i])[dim];
        if (box.begin < half.end && half.begin < box.end) stack_.push_back(stack_[i]);
      }
      auto problem = Check(last);
      stack_.resize(last);
      if (problem) return problem;
    }
    region_[dim] = whole;
    return std::nullopt;
  }

  bool FillsRegion(size_t box) const {
    const Interval* bounds = BoundsOf(box);
    for (size_t d = 0; d < dims_; ++d) {
      if (bounds[d].begin > region_[d].begin || bounds[d].end < region_[d].end) return false;
    }
    return true;
  }

  // Returns the first element of the region, or of its intersection with a box.
  std::vector<int64_t> Corner(const Interval* box) const {
    std::vector<int64_t> index;
    for (size_t d = 0; d < dims_; ++d) {
      index.push_back(box == nullptr ? region_[d].begin : std::max(region_[d].begin, box[d].begin));
    }
    return index;
  }

  // Returns the dim with most boundaries inside the region, and their median.
  std::pair<size_t, int64_t> ChooseSplit(size_t first) {
    size_t best_dim = 0;
    best_.clear();
    for (size_t d = 0; d < dims_; ++d) {
      boundaries_.clear();
      for (size_t i = first; i < stack_.size(); ++i) {
        // Both are within the region's far ends, because the box intersects it.
        const Interval& box = BoundsOf(stack_[i])[d];
        if (box.begin > region_[d].begin) boundaries_.push_back(box.begin);
        if (box.end < region_[d].end) boundaries_.push_back(box.end);
      }
      if (boundaries_.size() > best_.size()) {
        best_dim = d;
        best_.swap(boundaries_);
      }
    }
    const auto median = best_.begin() + best_.size() / 2;
    std::nth_element(best_.begin(), median, best_.end());
    return {best_dim, *median};
  }

  const size_t dims_;
  std::vector<Interval> region_;  // dims_ elements
  std::vector<Interval> bounds_;  // dims_ elements per box
  std::vector<size_t> stack_;
  std::vector<int64_t> best_, boundaries_;
};

}  // namespace

std::optional<CoverageProblem> FindCoverageProblem(const Shape& global_shape,
                                                   std::span<const Box> boxes) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!CheckBoxInside(global_shape, boxes[i]).ok()) {
      return CoverageProblem{CoverageProblem::Kind::kOutside, i, i, {}};
    }
  }
  if (ElementCount(global_shape) == 0) return std::nullopt;
  return PartitionCheck(global_shape, boxes).Check();
}

std::string ToString(const CoverageProblem& problem, std::span<const Box> boxes) {
  const auto shard = [&](size_t i) { return std::to_string(i) + " " + ToString(boxes[i]); };
  switch (problem.kind) {
    case CoverageProblem::Kind::kOutside:
      return "shard " + shard(problem.first) + " is not inside the tensor";
    case CoverageProblem::Kind::kOverlap:
      return "element " + ShapeToString(problem.index) + " is in shards " + shard(problem.first) +
             " and " + shard(problem.second);
    case CoverageProblem::Kind::kGap:
      break;
  }
  return "element " + ShapeToString(problem.index) + " is in no shard";
}

}  // namespace tessera
