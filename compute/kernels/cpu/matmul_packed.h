#ifndef TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACKED_H_
#define TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACKED_H_

#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

// bf16 on processors whose oneDNN kernels want packed operands: does the product, or returns false
// where its shape does not suit them.
bool PackedMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PACKED_H_
