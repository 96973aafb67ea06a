#include "layout/bounds.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"

namespace tessera {

absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape) {
  if (shape.size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shape has ", shape.size(), " dims, at most ", kMaxRank, " are allowed"));
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
  const absl::StatusOr<int64_t> count = CheckedElementCount(shape);
  if (!count.ok()) return count.status();
  const std::optional<int64_t> bytes = CheckedMultiply(*count, element_bytes);
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

}  // namespace tessera
