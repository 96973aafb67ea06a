#include "layout/subtract.h"

#include <optional>
#include <utility>

namespace tessera {

void SubtractBox(const Box& box, const Box& hole, std::vector<Box>& out) {
  const std::optional<Box> common = Intersect(box, hole);
  if (!common) {
    out.push_back(box);
    return;
  }
  Box rest = box;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    const int64_t begin = rest.global_offset[d], end = begin + rest.shape[d];
    const int64_t hole_begin = common->global_offset[d], hole_end = hole_begin + common->shape[d];
    if (begin < hole_begin) {
      Box below = rest;
      below.shape[d] = hole_begin - begin;
      out.push_back(std::move(below));
    }
    if (hole_end < end) {
      Box above = rest;
      above.global_offset[d] = hole_end;
      above.shape[d] = end - hole_end;
      out.push_back(std::move(above));
    }
    rest.global_offset[d] = hole_begin;
    rest.shape[d] = hole_end - hole_begin;
  }
}

}  // namespace tessera
