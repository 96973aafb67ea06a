#ifndef TESSERA_COMPUTE_KERNELS_CPU_MATMUL_TILED_H_
#define TESSERA_COMPUTE_KERNELS_CPU_MATMUL_TILED_H_

#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

// The product in tiles of c, of any shape and dtype.
void TiledMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_MATMUL_TILED_H_
