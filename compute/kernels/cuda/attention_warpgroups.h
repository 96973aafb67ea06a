#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

// Returns whether the kernel below can compute this: bf16 in runs of 16 bytes, heads of 64 or 128
// elements, keys and values with the same strides, no dropout.
bool CanAttendByWarpgroups(const ops::AttentionForward& op);

// Queues attention's forward pass with the products of warpgroups (warpgroup.h). The device must be
// of compute capability 9.0.
void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionForward& op);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_
