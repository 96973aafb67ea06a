#include "layout/elements/box_runs.h"

#include <utility>

namespace tessera {

BoxRuns::BoxRuns(const Box& outer, const Box& region, const std::vector<int64_t>& strided_offset,
                 const std::vector<int64_t>& strides) {
  const std::vector<int64_t> outer_strides = ContiguousStrides(outer.shape);
  std::vector<StridedDim> dims;
  for (size_t d = 0; d < region.shape.size(); ++d) {
    outer_base_ += (region.global_offset[d] - outer.global_offset[d]) * outer_strides[d];
    strided_base_ += (region.global_offset[d] - strided_offset[d]) * strides[d];
    dims.push_back({region.shape[d], outer_strides[d], strides[d]});
  }
  dims = MergeDims(dims);
  if (!dims.empty() && dims.back().from_stride == 1) {
    run_ = dims.back().extent;
    run_stride_ = dims.back().to_stride;
    dims.pop_back();
  }
  dims_ = std::move(dims);
}

std::optional<int64_t> BoxRuns::Contiguous(int64_t begin, int64_t end) const {
  if (run_stride_ != 1 && end - begin > 1) return std::nullopt;
  std::optional<int64_t> first;
  ForEach(begin, end, [&](const Run& run) {
    if (run.count == end - begin) first = run.strided_element;
  });
  return first;
}

bool BoxRuns::Seek(int64_t begin, std::vector<int64_t>& index) const {
  int64_t rest = begin - outer_base_;
  if (rest <= 0) return true;
  for (size_t d = 0; d < dims_.size(); ++d) {
    index[d] = rest / dims_[d].from_stride;
    if (index[d] >= dims_[d].extent) return Carry(index, d);
    rest -= index[d] * dims_[d].from_stride;
  }
  return rest < run_ || Carry(index, dims_.size());
}

bool BoxRuns::Carry(std::vector<int64_t>& index, size_t d) const {
  std::fill(index.begin() + d, index.end(), 0);
  while (d > 0) {
    --d;
    if (++index[d] < dims_[d].extent) return true;
    index[d] = 0;
  }
  return false;
}

}  // namespace tessera
