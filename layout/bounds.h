#ifndef TESSERA_LAYOUT_BOUNDS_H_
#define TESSERA_LAYOUT_BOUNDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/box.h"

namespace tessera {

// Number of elements of a shape from an untrusted source. InvalidArgument: more than kMaxRank dims,
// a negative extent, a product beyond int64 (extents of 0 do not hide an overflow of the others).
absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape);

// The same in bytes.
absl::StatusOr<int64_t> CheckedByteCount(const Shape& shape, int64_t element_bytes);

// InvalidArgument unless the box has the rank of the shape, no negative numbers, and lies inside
// the shape; empty boxes included. The message names the dim.
absl::Status CheckBoxInside(const Shape& global_shape, const Box& box);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_BOUNDS_H_
