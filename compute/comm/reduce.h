#ifndef TESSERA_COMPUTE_COMM_REDUCE_H_
#define TESSERA_COMPUTE_COMM_REDUCE_H_

#include <cstdint>
#include <span>

#include "compute/comm/communicator.h"

namespace tessera {

// output[i] = the reduction over inputs[0][i], inputs[1][i], ... in the order that ReduceOp
// promises. `output` may be one of the inputs; no other overlap. Precondition: a type that can be
// reduced.
void ReduceInTreeOrder(ReduceOp op, CommType type, std::span<const void* const> inputs,
                       void* output, int64_t elements);

// m of T(a, b) for a = 0: the largest power of two below `count`. Precondition: count > 1.
int TreeSplit(int count);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_REDUCE_H_
