#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

// Return whether the kernels below can compute this: bf16 in runs of 16 bytes, heads of 64 or 128
// elements, keys and values with the same strides, no dropout.
bool CanAttendByWarpgroups(const ops::AttentionForward& op);
bool CanAttendByWarpgroups(const ops::AttentionBackward& op);

// Queue attention's forward and backward pass with the products of warpgroups (warpgroup.h). The
// device must be of compute capability 9.0. The backward pass reads `statistics` of all queries.
void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionForward& op);
void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionBackward& op,
                                 const QueryStatistics& statistics);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUPS_H_
