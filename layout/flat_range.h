#ifndef TESSERA_LAYOUT_FLAT_RANGE_H_
#define TESSERA_LAYOUT_FLAT_RANGE_H_

#include <cstdint>
#include <vector>

#include "layout/box.h"

namespace tessera {

// Boxes whose union is the elements [begin, end) of the row-major flattening of `local`, a box of a
// logical tensor, in global coordinates. This converts a ZeRO rank's range of a flat buffer into
// shards, without any communication.
//
// The boxes are disjoint, not empty, at most max(1, 2N - 1) for N dims, and in the order of the
// range: each box is contiguous in the flat buffer and the next one begins where it ends. An empty
// range yields none. Precondition: 0 <= begin <= end <= ElementCount(local.shape).
std::vector<Box> FlatRangeToBoxes(const Box& local, int64_t begin, int64_t end);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_FLAT_RANGE_H_
