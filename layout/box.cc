#include "layout/box.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"

namespace tessera {

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<int64_t> ContiguousStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

Box WholeBox(const Shape& global_shape) {
  return {std::vector<int64_t>(global_shape.size(), 0), global_shape};
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  const size_t dims = a.shape.size();
  if (b.shape.size() != dims) return std::nullopt;
  Box common;
  common.global_offset.resize(dims);
  common.shape.resize(dims);
  for (size_t d = 0; d < dims; ++d) {
    const int64_t begin = std::max(a.global_offset[d], b.global_offset[d]);
    const int64_t end = std::min(a.global_offset[d] + a.shape[d], b.global_offset[d] + b.shape[d]);
    if (end <= begin) return std::nullopt;
    common.global_offset[d] = begin;
    common.shape[d] = end - begin;
  }
  return common;
}

bool Contains(const Box& outer, const Box& inner) {
  if (outer.shape.size() != inner.shape.size()) return false;
  if (inner.empty()) return true;
  for (size_t d = 0; d < outer.shape.size(); ++d) {
    if (inner.global_offset[d] < outer.global_offset[d]) return false;
    if (inner.global_offset[d] + inner.shape[d] > outer.global_offset[d] + outer.shape[d]) {
      return false;
    }
  }
  return true;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  // A box from an untrusted source may have columns of different lengths or ends beyond int64, and
  // still needs a message.
  const size_t dims = std::min(box.global_offset.size(), box.shape.size());
  for (size_t d = 0; d < dims; ++d) {
    if (d != 0) text += ',';
    text += std::to_string(box.global_offset[d]);
    text += ':';
    int64_t end;
    if (__builtin_add_overflow(box.global_offset[d], box.shape[d], &end)) {
      end = std::numeric_limits<int64_t>::max();
    }
    text += std::to_string(end);
  }
  return text += ']';
}

std::string ShapeToString(const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d != 0) text += ',';
    text += std::to_string(shape[d]);
  }
  return text += ']';
}

absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape) {
  if (shape.size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shape has ", shape.size(), " dims, at most ", kMaxDims, " are allowed"));
  }
  int64_t count = 1;
  bool empty = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ShapeToString(shape), ": dim ", d, " is negative"));
    }
    if (shape[d] == 0) {
      empty = true;
      continue;
    }
    const std::optional<int64_t> product = CheckedMultiply(count, shape[d]);
    if (!product) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ShapeToString(shape), ": the number of elements overflows"));
    }
    count = *product;
  }
  return empty ? 0 : count;
}

absl::StatusOr<int64_t> CheckedByteCount(const Shape& shape, int64_t element_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
  const std::optional<int64_t> bytes = CheckedMultiply(count, element_bytes);
  if (!bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", ShapeToString(shape), ": the number of bytes overflows"));
  }
  return *bytes;
}

absl::Status CheckBoxInside(const Shape& global_shape, const Box& box) {
  if (box.shape.size() != global_shape.size() || box.global_offset.size() != global_shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a box has ", box.global_offset.size(), " offsets and ", box.shape.size(),
                     " extents, the tensor has ", global_shape.size(), " dims"));
  }
  for (size_t d = 0; d < global_shape.size(); ++d) {
    // Uses subtraction, because the sum of two hostile numbers could overflow.
    if (box.global_offset[d] < 0 || box.shape[d] < 0 || box.shape[d] > global_shape[d] ||
        box.global_offset[d] > global_shape[d] - box.shape[d]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a box is not inside its tensor: in dim ", d, " offset ", box.global_offset[d],
          ", extent ", box.shape[d], ", tensor extent ", global_shape[d]));
    }
  }
  return absl::OkStatus();
}

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

// Takes, from `begin` on, the largest block of the row-major order that starts there and still
// fits: blocks first grow (completing the row, plane, ... in whose middle the range begins), then
// shrink. Each dim but the outermost occurs at most once while growing and once while shrinking: 2N
// - 1 boxes.
std::vector<Box> FlatRangeToBoxes(const Box& local, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  const int dims = static_cast<int>(local.shape.size());
  if (begin >= end) return boxes;
  if (dims == 0) {
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
