#ifndef TESSERA_LAYOUT_SUBTRACT_H_
#define TESSERA_LAYOUT_SUBTRACT_H_

#include <vector>

#include "layout/box.h"

namespace tessera {

// Appends `box` without `hole` to `out`, as disjoint boxes, at most two per dim.
void SubtractBox(const Box& box, const Box& hole, std::vector<Box>& out);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_SUBTRACT_H_
