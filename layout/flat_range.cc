#include "layout/flat_range.h"

#include <algorithm>
#include <utility>

namespace tessera {

// Takes, from `begin` on, the largest block of the row-major order that starts there and still
// fits: blocks first grow (completing the row, plane, ... in whose middle the range begins), then
// shrink. Each dim but the outermost occurs at most once while growing and once while shrinking: 2N
// - 1 boxes.
std::vector<Box> FlatRangeToBoxes(const Box& local, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  const int rank = static_cast<int>(local.shape.size());
  if (begin >= end) return boxes;
  if (rank == 0) {
    boxes.push_back(local);
    return boxes;
  }
  const std::vector<int64_t> strides = ContiguousStrides(local.shape);
  for (int64_t at = begin; at < end;) {
    int dim = 0;
    while (at % strides[dim] != 0 || strides[dim] > end - at) ++dim;  // the last stride is 1
    const int64_t row = at / strides[dim] % local.shape[dim];
    const int64_t rows = std::min((end - at) / strides[dim], local.shape[dim] - row);
    Box box = local;
    for (int d = 0; d < dim; ++d) {
      box.global_offset[d] += at / strides[d] % local.shape[d];
      box.shape[d] = 1;
    }
    box.global_offset[dim] += row;
    box.shape[dim] = rows;
    boxes.push_back(std::move(box));
    at += rows * strides[dim];
  }
  return boxes;
}

}  // namespace tessera
