#ifndef TESSERA_TRAINER_KERNELS_CUDA_TREE_REDUCE_H_
#define TESSERA_TRAINER_KERNELS_CUDA_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "trainer/kernels/cuda/simt.h"

namespace tessera::cuda {

// One address a rank: more would not fit into the arguments of a launch.
inline constexpr int kMaxTreeInputs = 256;

enum class TreeOp { kSum, kMax };

// output[i] = the sum or maximum over inputs[0][i], inputs[1][i], ... in the order of the binary
// tree T(0, n), where T(a, b) = T(a, m) + T(m, b) and m = a + the largest power of two below b - a.
// bf16 is added in fp32 and rounded once; integers wrap around; a maximum is NaN where an input is.
// `output` may be one of the inputs; no other overlap. Defined for float, BFloat16, double, int32_t
// and int64_t. Precondition: 1 to kMaxTreeInputs inputs.
template <typename T>
void TreeReduce(simt::Stream stream, TreeOp op, std::span<const T* const> inputs, int64_t elements,
                T* output);

}  // namespace tessera::cuda

#endif  // TESSERA_TRAINER_KERNELS_CUDA_TREE_REDUCE_H_
