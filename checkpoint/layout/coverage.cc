#include "checkpoint/layout/coverage.h"

#include <algorithm>
#include <utility>

#include "checkpoint/layout/bounds.h"

namespace tessera::ckpt {
namespace {

// Splits the tensor recursively until each region lies in exactly one box. A region that no box
// fills entirely has a box boundary inside it; splitting at the median of those boundaries halves
// them, so that the depth is logarithmic.
class Partition {
 public:
  explicit Partition(std::span<const Box> boxes) : boxes_(boxes) {}

  // `touching`: the boxes that share at least one element with `region`, ascending.
  std::optional<CoverageProblem> Check(const Box& region, const std::vector<size_t>& touching) {
    if (touching.empty())
      return CoverageProblem{CoverageProblem::Kind::kGap, 0, 0, region.global_offset};
    for (const size_t i : touching) {
      if (!Contains(boxes_[i], region)) continue;
      if (touching.size() == 1) return std::nullopt;
      const size_t other = touching[0] == i ? touching[1] : touching[0];
      return CoverageProblem{CoverageProblem::Kind::kOverlap, std::min(i, other),
                             std::max(i, other), Intersect(boxes_[other], region)->global_offset};
    }
    const auto [dim, at] = ChooseSplit(region, touching);
    Box low = region, high = region;
    low.shape[dim] = at - region.global_offset[dim];
    high.shape[dim] -= low.shape[dim];
    high.global_offset[dim] = at;
    if (auto problem = Check(low, Touching(low, touching))) return problem;
    return Check(high, Touching(high, touching));
  }

 private:
  // The dim with most boundaries inside the region, and their median.
  std::pair<int, int64_t> ChooseSplit(const Box& region, const std::vector<size_t>& touching) {
    int best_dim = 0;
    std::vector<int64_t> best, boundaries;
    for (size_t d = 0; d < region.shape.size(); ++d) {
      const int64_t begin = region.global_offset[d], end = begin + region.shape[d];
      boundaries.clear();
      for (const size_t i : touching) {
        const int64_t low = boxes_[i].global_offset[d], high = low + boxes_[i].shape[d];
        if (low > begin) boundaries.push_back(low);  // low < end, because the box touches
        if (high < end) boundaries.push_back(high);
      }
      if (boundaries.size() > best.size()) {
        best_dim = static_cast<int>(d);
        best.swap(boundaries);
      }
    }
    const auto median = best.begin() + best.size() / 2;
    std::nth_element(best.begin(), median, best.end());
    return {best_dim, *median};
  }

  std::vector<size_t> Touching(const Box& region, const std::vector<size_t>& candidates) {
    std::vector<size_t> touching;
    for (const size_t i : candidates) {
      bool touches = true;
      for (size_t d = 0; d < region.shape.size() && touches; ++d) {
        touches = boxes_[i].global_offset[d] < region.global_offset[d] + region.shape[d] &&
                  region.global_offset[d] < boxes_[i].global_offset[d] + boxes_[i].shape[d];
      }
      if (touches) touching.push_back(i);
    }
    return touching;
  }

  std::span<const Box> boxes_;
};

std::string IndexToString(const std::vector<int64_t>& index) { return ShapeToString(index); }

}  // namespace

std::optional<CoverageProblem> FindCoverageProblem(const Shape& global_shape,
                                                   std::span<const Box> boxes) {
  std::vector<size_t> touching;
  touching.reserve(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!CheckBoxInside(global_shape, boxes[i]).ok()) {
      return CoverageProblem{CoverageProblem::Kind::kOutside, i, i, {}};
    }
    if (!boxes[i].empty()) touching.push_back(i);
  }
  const Box whole = WholeBox(global_shape);
  if (whole.empty()) return std::nullopt;
  return Partition(boxes).Check(whole, touching);
}

std::string ToString(const CoverageProblem& problem, std::span<const Box> boxes) {
  const auto shard = [&](size_t i) { return std::to_string(i) + " " + ToString(boxes[i]); };
  switch (problem.kind) {
    case CoverageProblem::Kind::kOutside:
      return "shard " + shard(problem.first) + " is not inside the tensor";
    case CoverageProblem::Kind::kOverlap:
      return "element " + IndexToString(problem.index) + " is in shards " + shard(problem.first) +
             " and " + shard(problem.second);
    case CoverageProblem::Kind::kGap:
      break;
  }
  return "element " + IndexToString(problem.index) + " is in no shard";
}

}  // namespace tessera::ckpt
