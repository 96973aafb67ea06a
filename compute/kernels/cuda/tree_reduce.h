#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TREE_REDUCE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TREE_REDUCE_H_

#include <cstdint>
#include <span>

#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

// Number of addresses that fit into the arguments of one launch: a power of two.
inline constexpr int kLaunchTreeInputs = 256;
// Number of inputs of two launches, one behind the other.
inline constexpr int kMaxTreeInputs = kLaunchTreeInputs * kLaunchTreeInputs;

enum class TreeOp { kSum, kMax };

// Sets output[i] to the sum or maximum over inputs[0][i], inputs[1][i], ... in the order of the
// binary tree T(0, n), where T(a, b) = T(a, m) + T(m, b) and m = a + the largest power of two below
// b - a. bf16 is added in fp32 and rounded once; integers wrap around; a maximum is NaN if an input
// is. `output` may be one of the inputs; no other overlap. Defined for float, BFloat16, double,
// int32_t and int64_t. Precondition: 1 to kMaxTreeInputs inputs.
//
// More than kLaunchTreeInputs inputs are reduced in groups of that many, which are subtrees of T(0,
// n), and then the groups. `scratch` is TreeReduceScratchBytes() of device memory, for the groups'
// results.
template <typename T>
void TreeReduce(simt::Stream stream, TreeOp op, std::span<const T* const> inputs, int64_t elements,
                T* output, void* scratch = nullptr);

// Returns the size of TreeReduce()'s scratch memory: 0 for up to kLaunchTreeInputs inputs.
template <typename T>
int64_t TreeReduceScratchBytes(int64_t inputs, int64_t elements);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TREE_REDUCE_H_
