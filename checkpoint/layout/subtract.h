#ifndef TESSERA_CHECKPOINT_LAYOUT_SUBTRACT_H_
#define TESSERA_CHECKPOINT_LAYOUT_SUBTRACT_H_

#include <vector>

#include "checkpoint/layout/box.h"

namespace tessera::ckpt {

// Appends `box` without `hole` to `out`, as disjoint boxes, at most two per dim.
void SubtractBox(const Box& box, const Box& hole, std::vector<Box>& out);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LAYOUT_SUBTRACT_H_
