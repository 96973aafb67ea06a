#ifndef TESSERA_LAYOUT_BOX_H_
#define TESSERA_LAYOUT_BOX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The most dims of a tensor. Frameworks stop at 64 or before; a small bound keeps hostile files
// cheap.
inline constexpr int kMaxDims = 32;

// Extents of a tensor, one per dim, in elements. A scalar has none and holds one element.
using Shape = std::vector<int64_t>;

// Returns the number of elements; 1 for a scalar. Precondition: extents are non-negative and the
// product fits (see CheckedElementCount() for numbers that come from a file).
int64_t ElementCount(const Shape& shape);

// Returns row-major strides in elements. Extents of 0 count as 1, so that no stride is 0.
std::vector<int64_t> ContiguousStrides(const Shape& shape);

// A half-open hyper-rectangle of a logical tensor: elements with
// global_offset[d] <= index[d] < global_offset[d] + shape[d] in every dim d.
struct Box {
  std::vector<int64_t> global_offset;
  Shape shape;

  bool empty() const { return ElementCount(shape) == 0; }
  bool operator==(const Box&) const = default;
};

// Returns the box that covers a whole tensor.
Box WholeBox(const Shape& global_shape);

// Returns the intersection of two boxes with the same number of dims; nullopt if it is empty.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Returns whether every element of `inner` lies in `outer`. An empty box lies in every box with
// the same number of dims.
bool Contains(const Box& outer, const Box& inner);

// Returns "[0:4,8:16]", for messages and for keys of data files; "[]" for a scalar.
std::string ToString(const Box& box);

// Returns "[4,8]"; "[]" for a scalar.
std::string ShapeToString(const Shape& shape);

// Returns the number of elements of a shape from an untrusted source. InvalidArgument: more than
// kMaxDims dims, a negative extent, a product beyond int64 (extents of 0 do not hide an overflow of
// the others).
absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape);

// CheckedElementCount() in bytes; InvalidArgument also if the bytes exceed int64.
absl::StatusOr<int64_t> CheckedByteCount(const Shape& shape, int64_t element_bytes);

// Returns InvalidArgument, naming the dim, unless the box, even an empty one, has the dims of the
// shape, no negative numbers, and lies inside the shape.
absl::Status CheckBoxInside(const Shape& global_shape, const Box& box);

// Appends `box` without `hole` to `out`, as disjoint boxes, at most two per dim.
void SubtractBox(const Box& box, const Box& hole, std::vector<Box>& out);

// Returns boxes, in global coordinates, whose union is the elements [begin, end) of the row-major
// flattening of `local`, a box of a logical tensor. This converts a ZeRO rank's range of a flat
// buffer into shards, without any communication.
//
// The boxes are disjoint, not empty, at most max(1, 2N - 1) for N dims, and in the order of the
// range. Each box is contiguous in the flat buffer, and the next one begins where it ends. An empty
// range yields none. Precondition: 0 <= begin <= end <= ElementCount(local.shape).
std::vector<Box> FlatRangeToBoxes(const Box& local, int64_t begin, int64_t end);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_BOX_H_
